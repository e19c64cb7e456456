//! An unprivileged process becomes root in its own user namespace. If root runs the test, the user nobody does this.
#![forbid(unsafe_code)]

use rustguard_tun::{
    namespace,
    tun::{Tun, TunError, TunOptions},
};
use std::{fs, io, os::unix::process::CommandExt, process::Command};

const NOBODY: u32 = 65_534;
const CHILD: &str = "RUSTGUARD_USER_NAMESPACE_CHILD";

fn main() {
    let options = TunOptions::new("rg-user");
    let as_nobody = std::env::var_os(CHILD).is_some();
    if as_nobody {
        let error = Tun::create(&options).expect_err("nobody must not create interfaces");
        assert!(matches!(&error, TunError::NotPermitted { name } if name == "rg-user"), "{error}");
    }
    // An independent check, so that our mistake is not taken for a machine that forbids user namespaces.
    let allowed = Command::new("unshare").args(["-Ur", "true"]).status().is_ok_and(|status| status.success());
    match namespace::enter_user_if_needed() {
        Ok(true) => {
            assert!(!as_nobody, "nobody is not privileged");
            return run_as_nobody();
        }
        Ok(false) => {}
        Err(error) if allowed => panic!("unshare(1) may, we may not: {error}"),
        Err(error) => return rustguard_skip::missing(&format!("no user namespaces: {error}")),
    }
    assert!(namespace::enter_user_if_needed().expect("nothing to do"), "privileged now");
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    assert!(status.contains("\nUid:\t0\t0\t0\t0\n") && status.contains("\nGid:\t0\t0\t0\t0\n"), "{status}");
    namespace::enter_network().expect("root may");
    // Root in the namespace cannot open files that the user could not open outside. On some machines, only root may
    // open this one.
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/net/tun") {
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        return rustguard_skip::skipped("/dev/net/tun is closed to other users here");
    }
    Tun::create(&options).expect("root may");
    println!("ok: a user namespace, a network namespace in it, and an interface in that");
}

fn run_as_nobody() {
    println!("privileged already: once more as nobody");
    // The user nobody may be unable to reach the program's path.
    match Command::new("/proc/self/exe").env(CHILD, "1").uid(NOBODY).gid(NOBODY).status() {
        Ok(status) => assert!(status.success()),
        // In a namespace whose only user is root, the user nobody does not exist.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            rustguard_skip::skipped("the user nobody is unknown here");
        }
        Err(error) => panic!("{error}"),
    }
}
