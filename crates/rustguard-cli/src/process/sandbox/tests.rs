use super::*;
use rustix::{
    io::Errno,
    mount::{FsOpenFlags, MountFlags, UnmountFlags, fsopen, mount, unmount},
    process::{Resource, getpid, getppid, getrlimit, test_kill_process},
    system::{init_module, sethostname},
    thread::move_into_link_name_space,
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    fs::{File, OpenOptions, Permissions},
    io::{ErrorKind, Write as _},
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{OpenOptionsExt as _, PermissionsExt as _},
            net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
        },
    },
    process::Command,
};

/// A thread gives up the same rights as a process, and then tries to use them. The other threads keep their rights.
#[test]
fn a_confined_process_is_refused_what_it_may_no_longer_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    std::thread::spawn(move || inside(&path)).join().unwrap();
    assert!(Command::new("/bin/true").status().unwrap().success());
}

fn inside(folder: &Path) {
    let [own, other] = ["own", "other"].map(|name| folder.join(name));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("secret"), "x").unwrap();
    assert!(Command::new("/bin/true").status().unwrap().success(), "programs start before");
    let before = fs::read_to_string("/proc/thread-self/status").unwrap();
    let namespace = File::open("/proc/thread-self/ns/net").unwrap();
    let [streams, datagrams] = ["streams", "datagrams"].map(|name| other.join(name));
    let _listener = UnixListener::bind(&streams).unwrap();
    let service = UnixDatagram::bind(&datagrams).unwrap();
    service.set_nonblocking(true).unwrap();
    this_thread(&Needs { state: vec![own.clone()], ..Needs::default() });

    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let value = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim_start_matches(':').trim().to_owned()
    };
    assert_eq!((value(&status, "NoNewPrivs"), value(&status, "Seccomp")), ("1".to_owned(), "2".to_owned()));
    let filters = |status: &str| value(status, "Seccomp_filters").parse::<u32>().unwrap();
    assert_eq!(filters(&status), filters(&before) + 2);
    let kept = (CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE | CapabilitySet::IPC_LOCK).bits();
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        let capabilities = u64::from_str_radix(&value(&status, set), 16).unwrap();
        assert_eq!(capabilities & !kept, 0, "{set}");
    }
    let had = u64::from_str_radix(&value(&before, "CapEff"), 16).unwrap();
    if had & CapabilitySet::SETPCAP.bits() != 0 {
        assert_eq!(u64::from_str_radix(&value(&status, "CapBnd"), 16).unwrap() & !kept, 0);
    }

    // Programs, processes and namespaces.
    let refused =
        |what: &str, error: io::Error| assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}");
    refused("a program", Command::new("/bin/true").status().unwrap_err());
    refused("a namespace", rustguard_tun::namespace::enter_network().unwrap_err());
    assert_eq!(test_kill_process(getppid().unwrap()).unwrap_err(), Errno::PERM, "signals");
    let none = None::<&std::ffi::CStr>;
    assert_eq!(mount("none", "/mnt", "tmpfs", MountFlags::empty(), none).unwrap_err(), Errno::PERM);
    assert_eq!(unmount("/proc", UnmountFlags::DETACH).unwrap_err(), Errno::PERM);
    assert_eq!(init_module(b"no module", c"").unwrap_err(), Errno::PERM);
    assert_eq!(fsopen("tmpfs", FsOpenFlags::empty()).unwrap_err(), Errno::PERM);
    assert_eq!(move_into_link_name_space(namespace.as_fd(), None).unwrap_err(), Errno::PERM);
    assert_eq!(sethostname(b"taken-over").unwrap_err(), Errno::PERM);
    // Calls that concern its own process are permitted.
    test_kill_process(getpid()).unwrap();
    getrlimit(Resource::Nofile);

    // Files.
    let folders = ["/etc", "/usr", "/run"].map(Path::new);
    for path in folders.iter().chain([&&*other]).map(|folder| folder.join("rustguard-was-here")) {
        refused("a new file", File::create(&path).unwrap_err());
    }
    refused("a file of others", fs::read(other.join("secret")).unwrap_err());
    let replaced = OpenOptions::new().write(true).open(other.join("secret"));
    refused("a change of a file of others", replaced.unwrap_err());
    refused("a link", std::os::unix::fs::symlink("/etc/passwd", own.join("link")).unwrap_err());
    let file = own.join("state");
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).unwrap().write_all(b"its own").unwrap();
    // The owner does not matter: Landlock does not see changes of the mode.
    for file in [&file, &other.join("secret"), &other] {
        for mode in [0o644, 0o602, 0o711, 0o700, 0, 0o4755] {
            refused("another mode", fs::set_permissions(file, Permissions::from_mode(mode)).unwrap_err());
        }
        refused("another owner", std::os::unix::fs::chown(file, Some(1), None).unwrap_err());
        refused("another group", std::os::unix::fs::lchown(file, None, Some(1)).unwrap_err());
    }
    for mode in [0o4755, 0o2755] {
        let new = OpenOptions::new().write(true).create_new(true).mode(mode).open(own.join("new"));
        refused("a new setuid file", new.unwrap_err());
    }
    assert!(fs::read_dir("/etc").is_ok());

    // Sockets.
    for family in [Domain::IPV4, Domain::IPV6] {
        Socket::new(family, Type::DGRAM, None).unwrap();
    }
    for kind in [Type::STREAM, Type::SEQPACKET, Type::DGRAM, Type::RAW] {
        refused("a way to a service of the machine", Socket::new(Domain::UNIX, kind, None).unwrap_err());
    }
    for kind in [Type::DGRAM, Type::RAW] {
        refused("a pair that sends to others", Socket::pair(Domain::UNIX, kind, None).unwrap_err());
    }
    // An end of the other pairs reaches only its other end, with any address.
    let [streams, datagrams] = [&streams, &datagrams].map(|name| SockAddr::unix(name).unwrap());
    for kind in [Type::STREAM, Type::SEQPACKET] {
        let (here, there) = Socket::pair(Domain::UNIX, kind, None).unwrap();
        for service in [&streams, &datagrams] {
            assert!(here.connect(service).is_err(), "{kind:?}");
            let _ = here.send_to(b"taken over", service);
        }
        drop(there);
        assert!([&streams, &datagrams].into_iter().all(|service| here.connect(service).is_err()), "{kind:?}");
    }
    assert_eq!(service.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    for family in [Domain::PACKET, Domain::VSOCK] {
        refused("an unusual socket", Socket::new(family, Type::DGRAM, None).unwrap_err());
    }

    // Threads start, with the same rights.
    let thread = std::thread::spawn(|| Command::new("/bin/true").status().unwrap_err().kind());
    assert_eq!(thread.join().unwrap(), ErrorKind::PermissionDenied);
}

/// seccomp refuses these too, but some kernels have only one of the two. Requests to io_uring bypass seccomp.
#[test]
fn landlock_keeps_signals_and_abstract_sockets_in_by_itself() {
    let name = SocketAddr::from_abstract_name(format!("rustguard-{}", std::process::id())).unwrap();
    let _service = UnixListener::bind_addr(&name).unwrap();
    let confined = move || {
        UnixStream::connect_addr(&name).unwrap();
        let status = confine_files(&Needs::default()).unwrap();
        (status == RulesetStatus::FullyEnforced)
            .then(|| (test_kill_process(getppid().unwrap()), UnixStream::connect_addr(&name)))
    };
    match std::thread::spawn(confined).join().unwrap() {
        Some((signal, connected)) => {
            assert_eq!(signal.unwrap_err(), Errno::PERM);
            assert_eq!(connected.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        None => println!("skipped: this kernel's Landlock does not know signals (Linux 6.12)"),
    }
}
