//! Runs the filters in an interpreter of their programs. A test that really makes most of these calls would be unsafe,
//! and would harm the machine if the filter failed. `sandbox/tests.rs` tests that the kernel uses the filters.
use super::*;

/// The processor, as the kernel tells it a filter (linux/audit.h).
const PROCESSOR: u32 = if cfg!(target_arch = "x86_64") {
    0xc000_003e
} else if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else {
    0xc000_00f3
};

/// The answers of filters (linux/seccomp.h).
const KILL: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

const EPERM: Option<u32> = Some(libc::EPERM.unsigned_abs());
const ENOSYS: Option<u32> = Some(libc::ENOSYS.unsigned_abs());

/// The filters of a process.
struct Filters([BpfProgram; 2]);

impl Filters {
    fn new() -> Self {
        Self(programs(&Needs::default()).unwrap())
    }

    /// The answer of each filter.
    fn answers(&self, processor: u32, call: i64, arguments: &[u32]) -> [u32; 2] {
        // struct seccomp_data, in words: the number, the processor, the address of the instruction, six arguments of
        // two words.
        let mut data = [0; 16];
        data[0] = u32::try_from(call).unwrap();
        data[1] = processor;
        for (n, argument) in arguments.iter().enumerate() {
            data[4 + 2 * n] = *argument;
            // Bits that the kernel ignores must not bypass a filter.
            data[5 + 2 * n] = 0xffff_ffff;
        }
        [run(&self.0[0], &data), run(&self.0[1], &data)]
    }

    /// The error of a call; `None` if it is permitted.
    fn error(&self, call: i64, arguments: &[u32]) -> Option<u32> {
        let error = self.answers(PROCESSOR, call, arguments).into_iter().find(|answer| *answer != ALLOW)?;
        assert_eq!(error & 0xffff_0000, ERRNO, "call {call} kills");
        Some(error & 0xffff)
    }
}

/// Runs a program as the kernel does (Documentation/networking/filter.rst).
fn run(program: &BpfProgram, data: &[u32; 16]) -> u32 {
    let mut accumulator = 0;
    let mut at = 0;
    loop {
        let step = &program[at];
        at += 1;
        let number = usize::try_from(step.k).unwrap();
        let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
        match step.code {
            0x20 => accumulator = data[number / 4],
            0x54 => accumulator &= step.k,
            0x05 => at += number,
            0x15 => at += jump(accumulator == step.k),
            0x25 => at += jump(accumulator > step.k),
            0x35 => at += jump(accumulator >= step.k),
            0x06 => return step.k,
            code => panic!("the instruction {code:#x}"),
        }
    }
}

/// Calls that change a file's mode, with the argument that has it.
const MODES: &[(i64, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (452, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
];

/// The calls that are refused with any argument.
const NEVER: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_setscheduler,
    libc::SYS_setpriority,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_sethostname,
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_syslog,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    463,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(not(target_arch = "x86_64"))]
    294,
];

#[test]
fn calls_that_no_tunnel_makes_are_refused() {
    let filters = Filters::new();
    for call in NEVER {
        assert_eq!(filters.error(*call, &[]), EPERM, "call {call}");
    }
    // With `--io uring`, the io_uring calls are permitted.
    let uring = Filters(programs(&Needs { uring: true, ..Needs::default() }).unwrap());
    for call in NEVER {
        let expected = if *call == libc::SYS_io_uring_setup { None } else { EPERM };
        assert_eq!(uring.error(*call, &[]), expected, "call {call} with io_uring");
    }
}

#[test]
fn what_a_tunnel_does_is_permitted() {
    let filters = Filters::new();
    let own = std::process::id();
    let calls: &[(i64, &[u32])] = &[
        (libc::SYS_read, &[3]),
        (libc::SYS_writev, &[3]),
        (libc::SYS_recvmmsg, &[3]),
        (libc::SYS_sendmmsg, &[3]),
        (libc::SYS_epoll_pwait, &[3]),
        (libc::SYS_futex, &[]),
        (libc::SYS_mmap, &[]),
        (libc::SYS_getrandom, &[]),
        (libc::SYS_exit_group, &[]),
        // TUNSETIFF, and FIONBIO.
        (libc::SYS_ioctl, &[3, 0x4004_54ca]),
        (libc::SYS_ioctl, &[3, 0x5421]),
        // F_SETFL and F_SETLK.
        (libc::SYS_fcntl, &[3, 4]),
        (libc::SYS_fcntl, &[3, 6]),
        // A thread of glibc: CLONE_VM and more, up to CLONE_CHILD_CLEARTID.
        (libc::SYS_clone, &[0x003d_0f00]),
        (libc::SYS_kill, &[own]),
        (libc::SYS_tgkill, &[own]),
        (libc::SYS_prlimit64, &[0]),
        (libc::SYS_prlimit64, &[own]),
        // SO_MARK, IP_PKTINFO, IPV6_RECVPKTINFO and IPV6_FREEBIND.
        (libc::SYS_setsockopt, &[3, 1, 36]),
        (libc::SYS_setsockopt, &[3, 0, 8]),
        (libc::SYS_setsockopt, &[3, 41, 49]),
        (libc::SYS_setsockopt, &[3, 41, 78]),
    ];
    for (call, arguments) in calls {
        assert_eq!(filters.error(*call, arguments), None, "call {call} {arguments:?}");
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        assert_eq!(filters.error(libc::SYS_socket, &[family.unsigned_abs(), 2, 0]), None);
    }
    // Signals of tokio, and transports of an embedder: SOCK_STREAM and SOCK_SEQPACKET, with SOCK_CLOEXEC and
    // SOCK_NONBLOCK.
    for kind in [1, 5] {
        assert_eq!(filters.error(libc::SYS_socketpair, &[1, kind | 0o2_004_000, 0]), None);
    }
    for protocol in [libc::NETLINK_ROUTE, libc::NETLINK_NETFILTER] {
        assert_eq!(filters.error(libc::SYS_socket, &[16, 3, protocol.unsigned_abs()]), None);
    }
    for (flags, mode) in [(libc::O_RDONLY, 0o7777), (libc::O_DIRECTORY, 0o4000), (libc::O_CREAT, 0o600)] {
        assert_eq!(filters.error(libc::SYS_openat, &[0, 0, flags.unsigned_abs(), mode]), None);
    }
}

#[test]
fn sockets_of_other_kinds_are_refused() {
    let filters = Filters::new();
    for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_KEY, libc::AF_BLUETOOTH] {
        assert_eq!(filters.error(libc::SYS_socket, &[family.unsigned_abs(), 2, 0]), EPERM, "{family}");
    }
    // Unix sockets of any type, plain and with SOCK_CLOEXEC and SOCK_NONBLOCK. For Unix sockets, the kernel treats
    // SOCK_RAW as SOCK_DGRAM.
    for (kind, flags) in [1, 2, 3, 5].into_iter().flat_map(|kind| [(kind, 0), (kind, 0o2_004_000)]) {
        assert_eq!(filters.error(libc::SYS_socket, &[1, kind | flags, 0]), EPERM, "{kind} {flags:o}");
        // An end of a datagram pair can send to any address.
        let expected = if matches!(kind, 2 | 3) { EPERM } else { None };
        assert_eq!(filters.error(libc::SYS_socketpair, &[1, kind | flags, 0]), expected, "{kind} {flags:o}");
        assert_eq!(filters.error(libc::SYS_socketpair, &[30, kind | flags, 0]), EPERM, "a pair of AF_TIPC");
    }
    for protocol in [libc::NETLINK_XFRM, libc::NETLINK_AUDIT, libc::NETLINK_GENERIC, libc::NETLINK_CRYPTO] {
        assert_eq!(filters.error(libc::SYS_socket, &[16, 3, protocol.unsigned_abs()]), EPERM, "{protocol}");
    }
    for (level, option) in [(0, 64), (0, 65), (0, 96), (0, 128), (41, 64), (41, 65)] {
        assert_eq!(filters.error(libc::SYS_setsockopt, &[3, level, option]), EPERM, "{level} {option}");
    }
}

#[test]
fn new_namespaces_are_refused_in_every_way() {
    let filters = Filters::new();
    for namespace in NAMESPACES {
        let flags = namespace.unsigned_abs();
        assert_eq!(filters.error(libc::SYS_clone, &[flags | libc::SIGCHLD.unsigned_abs()]), EPERM, "{flags:#x}");
    }
    // The C library falls back to calls whose arguments a filter sees.
    assert_eq!(filters.error(libc::SYS_clone3, &[]), ENOSYS);
    assert_eq!(filters.error(libc::SYS_openat2, &[]), ENOSYS);
}

#[test]
fn files_do_not_become_setuid() {
    let filters = Filters::new();
    for mode in [0o4755, 0o2755, 0o6000] {
        for (call, argument) in MODES.iter().copied().chain(CREATES) {
            let mut arguments = vec![0; usize::from(argument)];
            arguments.push(mode);
            assert_eq!(filters.error(call, &arguments), EPERM, "call {call} {mode:o}");
        }
        for flags in [libc::O_CREAT | libc::O_WRONLY, libc::O_TMPFILE | libc::O_WRONLY] {
            let flags = flags.unsigned_abs();
            assert_eq!(filters.error(libc::SYS_openat, &[0, 0, flags, mode]), EPERM, "{flags:#x} {mode:o}");
            #[cfg(target_arch = "x86_64")]
            assert_eq!(filters.error(libc::SYS_open, &[0, flags, mode]), EPERM, "{flags:#x} {mode:o}");
        }
    }
}

#[test]
fn files_keep_their_mode_and_owner() {
    let filters = Filters::new();
    for (call, argument) in MODES {
        for mode in [0o600, 0o660, 0o640, 0o700, 0, 0o711, 0o644, 0o777] {
            let arguments = [vec![0; usize::from(*argument)], vec![mode]].concat();
            assert_eq!(filters.error(*call, &arguments), EPERM, "call {call} {mode:o}");
        }
    }
    let mut owners = vec![libc::SYS_fchown, libc::SYS_fchownat];
    #[cfg(target_arch = "x86_64")]
    owners.extend([libc::SYS_chown, libc::SYS_lchown]);
    for call in owners {
        assert_eq!(filters.error(call, &[]), EPERM, "call {call}");
    }
}

#[test]
fn other_processes_get_no_signals_and_no_limits() {
    let filters = Filters::new();
    let other = std::process::id() + 1;
    // 0 is the process group, and -1 all processes.
    for process in [other, 0, u32::MAX] {
        assert_eq!(filters.error(libc::SYS_kill, &[process, 9]), EPERM);
        assert_eq!(filters.error(libc::SYS_tgkill, &[process, process, 9]), EPERM);
    }
    assert_eq!(filters.error(libc::SYS_prlimit64, &[other]), EPERM);
    // F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
    for command in [8, 10, 15] {
        assert_eq!(filters.error(libc::SYS_fcntl, &[3, command]), EPERM);
    }
    for request in [0x8901, 0x8902] {
        assert_eq!(filters.error(libc::SYS_ioctl, &[3, request]), EPERM);
    }
}

#[test]
fn nothing_is_typed_into_the_terminal() {
    // TIOCSTI, and TIOCLINUX, which pastes.
    for request in [0x5412, 0x541c] {
        assert_eq!(Filters::new().error(libc::SYS_ioctl, &[0, request]), EPERM);
    }
}

/// The other system call interfaces of the kernel have other numbers for the same calls.
#[test]
fn other_interfaces_of_the_kernel_are_closed() {
    let filters = Filters::new();
    // i386, by `int 0x80`; and the 32-bit ARM of an arm64 kernel.
    for processor in [0x4000_0003, 0x4000_0028] {
        assert!(filters.answers(processor, libc::SYS_read, &[]).contains(&KILL));
    }
    if cfg!(target_arch = "x86_64") {
        let same = NEVER.iter().copied().chain([libc::SYS_clone, libc::SYS_socket, libc::SYS_fchmod, libc::SYS_kill]);
        for call in same.chain([libc::SYS_clone3, libc::SYS_openat2]).chain(512..=547) {
            assert_eq!(filters.error(X32 | call, &[]), EPERM, "call {call} of x32");
        }
    }
}
