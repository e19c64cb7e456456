/* One measurement of the benchmark `xdp`: datagrams from one network namespace to another over a veth pair, by UDP sockets
 * as RustGuard uses them, or by AF_XDP.
 *
 *     xdp SENDER RECEIVER SIZE MILLISECONDS CORE CORE [gro]
 *
 * SENDER is `udp`, `single` (UDP without runs of datagrams) or `xdp`, RECEIVER is `udp` or `xdp`. SIZE is the UDP payload in
 * bytes. The cores are those of the sender and of the receiver. `gro` has the kernel join datagrams that arrive one by one,
 * as it does on network cards and not on veth. The namespaces are called `a` and `b`, their interfaces `left` (10.77.0.1) and
 * `right` (10.77.0.2).
 *
 * It prints: datagrams received, datagrams lost, messages of UDP received, seconds, seconds in which the processors were not
 * idle (softirq included), and the CPU time of the sender and of the receiver. Its status is 77 if BPF is not permitted.
 *
 * It is C, because the rings of AF_XDP are memory shared with the kernel: each crate for them has functions that are
 * `unsafe` to call, and RustGuard has no unsafe code for a benchmark.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/futex.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PORT = 51820,
    /* As in RustGuard: packets that a worker takes at once, the longest payload of a run and its most segments, messages of
     * one recvmmsg and the bytes for each, the sizes of the sockets' buffers. */
    BATCH = 64,
    MAX_PAYLOAD = 65507,
    MAX_SEGMENTS = 64,
    RECV_BATCH = 8,
    SLOT = 65536 + 1536,
    RECEIVE_BUFFER = 7 << 20,
    SEND_BUFFER = 32 << 20,
    /* The frames of AF_XDP: all of them fit into the second-level cache of most processors. */
    FRAME = 2048,
    FRAMES = 512,
    /* How many datagrams may be on their way, so that none are lost. */
    WINDOW = 256,
    NOT_PERMITTED = 77,
    HEADERS = 14 + 20 + 8,
    LINE = 64,
};

struct end {
    int fd;
    int core;
    void (*run)(struct end *);
    pthread_t thread;
    /* AF_XDP */
    struct ring { _Atomic uint32_t *producer, *consumer, *flags; void *entries; } rx, tx, fill, completion;
    char *frames;
    uint64_t unused[FRAMES];
    int unused_count;
};

static size_t size;
static size_t run;
static uint8_t headers[HEADERS];
static struct sockaddr_in here, there;
static _Atomic uint64_t sent, received, lost, messages_received;
static _Atomic uint32_t asleep;
static _Atomic bool stop;
static _Atomic uint64_t read_sum;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static long must(long result, const char *what)
{
    if (result < 0)
        fail(what);
    return result;
}

/* ---- The window ---- */

/* Waits until a batch has room. What has not arrived after 20 ms is lost. */
static void wait_for_room(void)
{
    const struct timespec limit = { .tv_nsec = 20 * 1000 * 1000 };
    while (!stop && sent + BATCH - received - lost > WINDOW) {
        uint64_t before = received;
        asleep = 1;
        if (sent + BATCH - received - lost <= WINDOW)
            break;
        long result = syscall(SYS_futex, &asleep, FUTEX_WAIT_PRIVATE, 1, &limit, NULL, 0);
        if (result < 0 && errno == ETIMEDOUT && before == received)
            lost = sent - received;
    }
    asleep = 0;
}

static void arrived(uint64_t count)
{
    received += count;
    if (asleep && sent - received - lost <= WINDOW / 2) {
        asleep = 0;
        syscall(SYS_futex, &asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

/* Waits for datagrams, for a while. */
static void wait_for_some(int fd)
{
    struct pollfd waiting = { .fd = fd, .events = POLLIN };
    poll(&waiting, 1, 20);
}

/* ---- What encryption and decryption do to the cache ---- */

static void write_payload(char *payload, uint64_t number)
{
    for (size_t at = 0; at + sizeof(number) <= size; at += LINE)
        memcpy(payload + at, &number, sizeof(number));
}

static void read_payload(const char *payload)
{
    uint64_t sum = 0, word;
    for (size_t at = 0; at + sizeof(word) <= size; at += LINE) {
        memcpy(&word, payload + at, sizeof(word));
        sum += word;
    }
    read_sum = sum;
}

/* ---- UDP, as in rustguard-tun ---- */

static void set(int fd, int level, int option, int value, const char *name)
{
    must(setsockopt(fd, level, option, &value, sizeof(value)), name);
}

static void open_udp(struct end *end, const struct sockaddr_in *address)
{
    end->fd = must(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), "socket");
    set(end->fd, SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER, "SO_RCVBUFFORCE");
    set(end->fd, SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER, "SO_SNDBUFFORCE");
    set(end->fd, IPPROTO_IP, IP_PKTINFO, 1, "IP_PKTINFO");
    set(end->fd, IPPROTO_IP, IP_RECVTOS, 1, "IP_RECVTOS");
    set(end->fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT, "IP_MTU_DISCOVER");
    set(end->fd, SOL_UDP, UDP_GRO, 1, "UDP_GRO");
    must(bind(end->fd, (const struct sockaddr *)address, sizeof(*address)), "bind");
}

union control {
    struct cmsghdr aligned;
    char bytes[CMSG_SPACE(sizeof(struct in_pktinfo)) + 2 * CMSG_SPACE(sizeof(int))];
};

static void send_udp(struct end *end)
{
    char *slab = malloc(BATCH * size);
    memset(slab, 0, BATCH * size);
    while (!stop) {
        struct mmsghdr messages[BATCH] = { 0 };
        struct iovec buffers[BATCH];
        union control controls[BATCH];
        int count = 0;
        wait_for_room();
        for (size_t first = 0; first < BATCH; first += run, count++) {
            size_t datagrams = BATCH - first < run ? BATCH - first : run;
            struct msghdr *message = &messages[count].msg_hdr;
            for (size_t i = first; i < first + datagrams; i++)
                write_payload(slab + i * size, i);
            buffers[count] = (struct iovec){ slab + first * size, datagrams * size };
            *message = (struct msghdr){
                .msg_name = &there, .msg_namelen = sizeof(there), .msg_iov = &buffers[count], .msg_iovlen = 1,
                .msg_control = &controls[count],
                .msg_controllen = CMSG_SPACE(sizeof(struct in_pktinfo)) + (run > 1 ? CMSG_SPACE(sizeof(uint16_t)) : 0),
            };
            struct cmsghdr *control = CMSG_FIRSTHDR(message);
            struct in_pktinfo source = { .ipi_spec_dst = here.sin_addr };
            control->cmsg_level = IPPROTO_IP;
            control->cmsg_type = IP_PKTINFO;
            control->cmsg_len = CMSG_LEN(sizeof(source));
            memcpy(CMSG_DATA(control), &source, sizeof(source));
            uint16_t segment = size;
            if (run == 1)
                continue;
            control = (struct cmsghdr *)((char *)control + CMSG_SPACE(sizeof(source)));
            control->cmsg_level = SOL_UDP;
            control->cmsg_type = UDP_SEGMENT;
            control->cmsg_len = CMSG_LEN(sizeof(segment));
            memcpy(CMSG_DATA(control), &segment, sizeof(segment));
        }
        int done = must(sendmmsg(end->fd, messages, count, MSG_DONTWAIT), "sendmmsg");
        for (int i = 0; i < done; i++)
            sent += messages[i].msg_len / size;
    }
    free(slab);
}

static void receive_udp(struct end *end)
{
    char *slab = malloc((size_t)RECV_BATCH * SLOT);
    struct mmsghdr messages[RECV_BATCH];
    struct iovec buffers[RECV_BATCH];
    struct sockaddr_in6 names[RECV_BATCH];
    union control controls[RECV_BATCH];
    while (!stop) {
        for (int i = 0; i < RECV_BATCH; i++) {
            buffers[i] = (struct iovec){ slab + (size_t)i * SLOT, SLOT };
            messages[i].msg_hdr = (struct msghdr){
                .msg_name = &names[i], .msg_namelen = sizeof(names[i]), .msg_iov = &buffers[i], .msg_iovlen = 1,
                .msg_control = &controls[i], .msg_controllen = sizeof(controls[i]),
            };
        }
        int count = recvmmsg(end->fd, messages, RECV_BATCH, MSG_DONTWAIT, NULL);
        if (count < 0) {
            if (errno != EAGAIN && errno != EINTR)
                fail("recvmmsg");
            wait_for_some(end->fd);
            continue;
        }
        uint64_t datagrams = 0;
        for (int i = 0; i < count; i++) {
            for (size_t at = 0; at + size <= messages[i].msg_len; at += size, datagrams++)
                read_payload(slab + (size_t)i * SLOT + at);
        }
        messages_received += count;
        arrived(datagrams);
    }
    free(slab);
}

/* ---- AF_XDP ---- */

static int bpf(int command, union bpf_attr *attributes)
{
    return syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

/* A map for one AF_XDP socket. Without the permission for it, nothing is measured. */
static int socket_map(void)
{
    union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
    int sockets = bpf(BPF_MAP_CREATE, &map);
    if (sockets < 0 && errno == EPERM)
        exit(NOT_PERMITTED);
    return must(sockets, "BPF_MAP_CREATE");
}

/* Gives the datagrams for our port to the socket, and everything else to the kernel. In native mode the driver runs the
 * program, before the network stack. */
static void redirect(int sockets, int socket, unsigned interface)
{
    uint32_t queue = 0;
    union bpf_attr entry = { .map_fd = sockets, .key = (uintptr_t)&queue, .value = (uintptr_t)&socket };
    must(bpf(BPF_MAP_UPDATE_ELEM, &entry), "BPF_MAP_UPDATE_ELEM");

#define LOAD(bits, to, from, at) { BPF_LDX | BPF_MEM | (bits), to, from, at, 0 }
#define UNLESS(register, value, jump) { BPF_JMP | BPF_JNE | BPF_K, register, 0, jump, value }
#define COPY(to, from) { BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0 }
#define SET(to, value) { BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value }
    struct bpf_insn program[] = {
        LOAD(BPF_W, BPF_REG_2, BPF_REG_1, 0),                         /* data */
        LOAD(BPF_W, BPF_REG_3, BPF_REG_1, 4),                         /* data_end */
        COPY(BPF_REG_4, BPF_REG_2),
        { BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_4, 0, 0, HEADERS },
        { BPF_JMP | BPF_JGT | BPF_X, BPF_REG_4, BPF_REG_3, 14, 0 },
        LOAD(BPF_H, BPF_REG_5, BPF_REG_2, 12), UNLESS(BPF_REG_5, htons(0x0800), 12), /* IPv4 */
        LOAD(BPF_B, BPF_REG_5, BPF_REG_2, 14), UNLESS(BPF_REG_5, 0x45, 10),          /* without options */
        LOAD(BPF_B, BPF_REG_5, BPF_REG_2, 23), UNLESS(BPF_REG_5, IPPROTO_UDP, 8),
        LOAD(BPF_H, BPF_REG_5, BPF_REG_2, 36), UNLESS(BPF_REG_5, htons(PORT), 6),
        LOAD(BPF_W, BPF_REG_2, BPF_REG_1, 16),                        /* rx_queue_index */
        { BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, sockets }, { 0 },
        SET(BPF_REG_3, XDP_PASS),
        { BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map },
        { BPF_JMP | BPF_EXIT, 0, 0, 0, 0 },
        SET(BPF_REG_0, XDP_PASS),
        { BPF_JMP | BPF_EXIT, 0, 0, 0, 0 },
    };
    static char log[4096];
    union bpf_attr load = {
        .prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)program, .insn_cnt = sizeof(program) / sizeof(*program),
        .license = (uintptr_t)"GPL", .log_buf = (uintptr_t)log, .log_size = sizeof(log), .log_level = 1,
    };
    int loaded = bpf(BPF_PROG_LOAD, &load);
    if (loaded < 0) {
        fprintf(stderr, "%s", log);
        fail("BPF_PROG_LOAD");
    }
    /* The kernel takes the program away when this process ends. */
    union bpf_attr link = { .link_create = {
        .prog_fd = loaded, .target_ifindex = interface, .attach_type = BPF_XDP, .flags = XDP_FLAGS_DRV_MODE } };
    must(bpf(BPF_LINK_CREATE, &link), "a program on the interface, in native mode");
}

static struct ring map_ring(int fd, const struct xdp_ring_offset *at, uint64_t page, size_t entry)
{
    char *memory = mmap(NULL, at->desc + FRAMES * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);
    if (memory == MAP_FAILED)
        fail("a ring");
    return (struct ring){ (void *)(memory + at->producer), (void *)(memory + at->consumer), (void *)(memory + at->flags),
                          memory + at->desc };
}

static void open_xdp(struct end *end, const char *name, bool receives, int sockets)
{
    end->fd = must(socket(AF_XDP, SOCK_RAW, 0), "AF_XDP");
    end->frames = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct xdp_umem_reg memory = { .addr = (uintptr_t)end->frames, .len = FRAMES * FRAME, .chunk_size = FRAME };
    must(setsockopt(end->fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof(memory)), "XDP_UMEM_REG");
    set(end->fd, SOL_XDP, XDP_UMEM_FILL_RING, FRAMES, "XDP_UMEM_FILL_RING");
    set(end->fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, FRAMES, "XDP_UMEM_COMPLETION_RING");
    set(end->fd, SOL_XDP, receives ? XDP_RX_RING : XDP_TX_RING, FRAMES, "XDP_RX_RING or XDP_TX_RING");
    struct xdp_mmap_offsets offsets;
    socklen_t length = sizeof(offsets);
    must(getsockopt(end->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length), "XDP_MMAP_OFFSETS");
    end->fill = map_ring(end->fd, &offsets.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(uint64_t));
    end->completion = map_ring(end->fd, &offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, sizeof(uint64_t));
    if (receives)
        end->rx = map_ring(end->fd, &offsets.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
    else
        end->tx = map_ring(end->fd, &offsets.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
    unsigned interface = if_nametoindex(name);
    if (interface == 0)
        fail(name);
    struct sockaddr_xdp address = { .sxdp_family = AF_XDP, .sxdp_ifindex = interface,
                                    .sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP };
    must(bind(end->fd, (struct sockaddr *)&address, sizeof(address)), "bind of AF_XDP");
    if (receives) {
        for (uint32_t i = 0; i < FRAMES; i++)
            ((uint64_t *)end->fill.entries)[i] = i * FRAME;
        *end->fill.producer = FRAMES;
        redirect(sockets, end->fd, interface);
    } else {
        for (int i = 0; i < FRAMES; i++)
            end->unused[end->unused_count++] = i * FRAME;
    }
}

/* The frames that the kernel has sent are free again. The last one is used first, while it is in the cache. */
static void take_sent(struct end *end)
{
    struct ring *ring = &end->completion;
    uint32_t at = *ring->consumer, last = *ring->producer;
    for (; at != last; at++)
        end->unused[end->unused_count++] = ((uint64_t *)ring->entries)[at % FRAMES];
    *ring->consumer = at;
}

static void send_xdp(struct end *end)
{
    struct ring *ring = &end->tx;
    while (!stop) {
        wait_for_room();
        take_sent(end);
        uint32_t at = *ring->producer, count = 0;
        for (; count < BATCH && end->unused_count; count++, at++) {
            uint64_t frame = end->unused[--end->unused_count];
            memcpy(end->frames + frame, headers, HEADERS);
            write_payload(end->frames + frame + HEADERS, count);
            ((struct xdp_desc *)ring->entries)[at % FRAMES] = (struct xdp_desc){ .addr = frame, .len = HEADERS + size };
        }
        *ring->producer = at;
        sent += count;
        /* One call sends no more than 32 of them, and says EAGAIN. */
        while (!stop && *ring->consumer != at) {
            if (sendto(end->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
                fail("sendto of AF_XDP");
        }
    }
}

static void receive_xdp(struct end *end)
{
    struct ring *ring = &end->rx;
    while (!stop) {
        uint32_t at = *ring->consumer, last = *ring->producer, back = *end->fill.producer;
        if (at == last) {
            wait_for_some(end->fd);
            continue;
        }
        if (last - at > BATCH)
            last = at + BATCH;
        uint64_t datagrams = 0;
        for (; at != last; at++, back++) {
            struct xdp_desc *packet = &((struct xdp_desc *)ring->entries)[at % FRAMES];
            if (packet->len == HEADERS + size) {
                read_payload(end->frames + packet->addr + HEADERS);
                datagrams++;
            }
            ((uint64_t *)end->fill.entries)[back % FRAMES] = packet->addr / FRAME * FRAME;
        }
        *ring->consumer = at;
        *end->fill.producer = back;
        if (*end->fill.flags & XDP_RING_NEED_WAKEUP)
            recvfrom(end->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
        arrived(datagrams);
    }
}

/* ---- The namespaces, and what is measured ---- */

static void enter(const char *namespace)
{
    int fd = must(open(namespace, O_RDONLY | O_CLOEXEC), namespace);
    must(setns(fd, CLONE_NEWNET), namespace);
    close(fd);
}

static void hardware_address(const char *name, uint8_t *to)
{
    struct ifreq request = { 0 };
    int fd = must(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    must(ioctl(fd, SIOCGIFHWADDR, &request), name);
    memcpy(to, request.ifr_hwaddr.sa_data, 6);
    close(fd);
}

static void switch_feature(const char *name, uint32_t command, bool on)
{
    struct ethtool_value value = { .cmd = command, .data = on };
    struct ifreq request = { .ifr_data = (void *)&value };
    int fd = must(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    must(ioctl(fd, SIOCETHTOOL, &request), "SIOCETHTOOL");
    close(fd);
}

/* The headers of all datagrams: the UDP checksum is 0, which IPv4 allows. */
static void make_headers(void)
{
    uint16_t words[14] = { [0] = htons(0x4500), [1] = htons(20 + 8 + size), [4] = htons(64 << 8 | IPPROTO_UDP),
                           [10] = htons(PORT), [11] = htons(PORT), [12] = htons(8 + size) };
    uint32_t sum = 0;
    memcpy(words + 6, &here.sin_addr, 4);
    memcpy(words + 8, &there.sin_addr, 4);
    for (int i = 0; i < 10; i++)
        sum += words[i];
    sum = (sum & 0xffff) + (sum >> 16);
    words[5] = ~((sum & 0xffff) + (sum >> 16));
    headers[12] = 0x08;
    memcpy(headers + 14, words, sizeof(words));
}

static void *on_its_core(void *argument)
{
    struct end *end = argument;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(end->core, &cores);
    must(sched_setaffinity(0, sizeof(cores), &cores), "sched_setaffinity");
    end->run(end);
    return NULL;
}

struct moment { double time, busy, cpu[2]; uint64_t received, lost, messages; };

static double seconds(clockid_t clock)
{
    struct timespec now;
    must(clock_gettime(clock, &now), "clock_gettime");
    return now.tv_sec + now.tv_nsec / 1e9;
}

static struct moment look(struct end ends[2])
{
    struct moment now = { .time = seconds(CLOCK_MONOTONIC), .received = received, .lost = lost,
                          .messages = messages_received };
    unsigned long long idle, waiting;
    FILE *file = fopen("/proc/stat", "r");
    if (!file || fscanf(file, "cpu %*u %*u %*u %llu %llu", &idle, &waiting) != 2)
        fail("/proc/stat");
    fclose(file);
    now.busy = now.time * sysconf(_SC_NPROCESSORS_ONLN) - (double)(idle + waiting) / sysconf(_SC_CLK_TCK);
    for (int i = 0; i < 2; i++) {
        clockid_t clock;
        must(-pthread_getcpuclockid(ends[i].thread, &clock), "pthread_getcpuclockid");
        now.cpu[i] = seconds(clock);
    }
    return now;
}

/* Waits for so long, and until something has arrived. */
static void pass(int milliseconds)
{
    uint64_t before = received;
    usleep(milliseconds * 1000);
    for (int tries = 0; received == before; tries++) {
        if (tries == 10000) {
            fprintf(stderr, "nothing arrives\n");
            exit(1);
        }
        usleep(1000);
    }
}

int main(int count, char **arguments)
{
    if (count < 7) {
        fprintf(stderr, "usage: xdp SENDER RECEIVER SIZE MILLISECONDS CORE CORE [gro]\n");
        return 2;
    }
    bool sender_is_xdp = !strcmp(arguments[1], "xdp"), receiver_is_xdp = !strcmp(arguments[2], "xdp");
    bool gro = count > 7 && !strcmp(arguments[7], "gro");
    struct end ends[2] = {
        { .core = atoi(arguments[5]), .run = sender_is_xdp ? send_xdp : send_udp },
        { .core = atoi(arguments[6]), .run = receiver_is_xdp ? receive_xdp : receive_udp },
    };
    size = atoi(arguments[3]);
    if (size < 8 || size > 1472)
        return 2;
    run = !strcmp(arguments[1], "single") ? 1 : MAX_PAYLOAD / size < MAX_SEGMENTS ? MAX_PAYLOAD / size : MAX_SEGMENTS;
    here = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr("10.77.0.1") };
    there = here;
    there.sin_addr.s_addr = inet_addr("10.77.0.2");

    make_headers();
    int sockets = socket_map();
    enter("/run/netns/a");
    hardware_address("left", headers + 6);
    /* veth joins nothing that comes from an interface with TSO. */
    if (gro)
        switch_feature("left", ETHTOOL_STSO, false);
    enter("/run/netns/b");
    hardware_address("right", headers);
    if (gro)
        switch_feature("right", ETHTOOL_SGRO, true);
    if (receiver_is_xdp)
        open_xdp(&ends[1], "right", true, sockets);
    else
        open_udp(&ends[1], &there);
    enter("/run/netns/a");
    if (sender_is_xdp)
        open_xdp(&ends[0], "left", false, sockets);
    else
        open_udp(&ends[0], &here);

    for (int i = 1; i >= 0; i--)
        must(-pthread_create(&ends[i].thread, NULL, on_its_core, &ends[i]), "pthread_create");
    int milliseconds = atoi(arguments[4]);
    pass(milliseconds / 5);
    struct moment before = look(ends);
    pass(milliseconds);
    struct moment after = look(ends);
    printf("%llu %llu %llu %.6f %.6f %.6f %.6f\n", (unsigned long long)(after.received - before.received),
           (unsigned long long)(after.lost - before.lost), (unsigned long long)(after.messages - before.messages),
           after.time - before.time, after.busy - before.busy, after.cpu[0] - before.cpu[0], after.cpu[1] - before.cpu[1]);
    stop = true;
    for (int i = 0; i < 2; i++)
        pthread_join(ends[i].thread, NULL);
    return 0;
}
