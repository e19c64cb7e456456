//! Each example runs, and does what its documentation describes.

#[cfg(feature = "kernel")]
#[expect(dead_code, reason = "the test has another `main`, and calls `run`")]
#[path = "../examples/control_socket.rs"]
mod control_socket;
#[path = "../examples/filter.rs"]
mod filter;
#[path = "../examples/own_transports.rs"]
mod own_transports;
#[path = "../examples/policy_engine.rs"]
mod policy_engine;
#[path = "../examples/tcp_beside_udp.rs"]
mod tcp_beside_udp;
#[path = "../examples/two_devices.rs"]
mod two_devices;

#[cfg(feature = "kernel")]
use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

#[test]
fn two_devices_in_a_tokio_program() {
    two_devices::main().unwrap();
}

#[test]
fn own_transports_carry_a_tunnel() {
    own_transports::main().unwrap();
}

#[test]
fn tcp_is_a_way_while_udp_is_blocked() {
    tcp_beside_udp::main().unwrap();
}

#[test]
fn a_filter_decides_between_peers() {
    filter::main().unwrap();
}

#[test]
fn a_routing_engine_spreads_flows() {
    policy_engine::main().unwrap();
}

#[cfg(feature = "kernel")]
#[test]
fn the_control_socket_tells_of_a_kernel_interface() {
    // The example's threads and interfaces are in the network namespace of this thread.
    let thread = std::thread::spawn(|| {
        if let Err(error) = rustguard_device::tun::namespace::enter_network() {
            // Not eprintln!, which the test harness captures.
            let line = format!("skipped: the control socket of a kernel interface: no network namespace ({error})\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return;
        }
        let sockets = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = async {
            let socket = sockets.path().join("rg-example.sock");
            let answer = tokio::task::spawn_blocking(move || get(&socket)).await.unwrap();
            assert!(answer.starts_with("private_key=") && answer.contains("\nlisten_port="), "{answer}");
            assert!(answer.ends_with("\nerrno=0\n\n"), "{answer}");
        };
        runtime.block_on(control_socket::run("rg-example", sockets.path(), asked)).unwrap();
        assert!(std::fs::read_dir(sockets.path()).unwrap().next().is_none(), "the socket is removed at the end");
    });
    thread.join().unwrap();
}

/// The answer of the control socket to a client without tokio.
#[cfg(feature = "kernel")]
fn get(socket: &Path) -> String {
    let mut client = UnixStream::connect(socket).unwrap();
    client.write_all(b"get=1\n\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}
