//! Tests of the set-up in real network namespaces.
//!
//! Each test runs the test binary again under `unshare`, as one process in its own network namespace. It has a
//! directory for its files, and programs that replace `resolvconf` and, on request, a failing `nft`. In the namespace,
//! `wg0` is a tun interface that nothing reads from, and `up0` is one end of a veth pair, the host's uplink.

use super::*;
use ipnet::IpNet;
use rustguard_device::kernel::{HostEvent, KernelError, LearnedRoutes, Monitor};
use std::{
    future::Future,
    io::Write,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const INSIDE: &str = "RUSTGUARD_TEST_INSIDE";
const DIRECTORY: &str = "RUSTGUARD_TEST_DIRECTORY";

/// Records its arguments and its input.
const FAKE_RESOLVCONF: &str = r#"#!/bin/sh
{ echo "resolvconf $*"; case $1 in -a) cat;; esac; } >> $RUSTGUARD_TEST_DIRECTORY/resolvconf.log
"#;

/// Runs the real `nft`, unless a test requests a failure.
const FAKE_NFT: &str = r#"#!/bin/sh
if [ -e $RUSTGUARD_TEST_DIRECTORY/nft.fails ]; then cat > /dev/null; echo 'no nf_tables here' >&2; exit 1; fi
PATH=${PATH#*:} exec nft "$@"
"#;

/// The parts of `wg` that wg-quick needs: storage for the mark, and one peer.
const FAKE_WG: &str = r#"#!/bin/sh
mark=$RUSTGUARD_TEST_DIRECTORY/mark
case "$1 $3" in
    'show ') echo wg0;;
    'show allowed-ips') printf 'KEY\t10.9.0.0/24 10.9.0.8/32 10.30.0.0/16 0.0.0.0/0 fd30::/64 ::/0\n';;
    'show fwmark') cat $mark 2> /dev/null || echo off;;
    'set fwmark') echo $4 > $mark;;
esac
"#;

/// Longer than any test takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Passes the name of the surrounding test function to the process that runs it again.
macro_rules! in_namespace {
    ($name:ident, $body:expr) => {
        run_in_namespace(concat!(module_path!(), "::", stringify!($name)), $body)
    };
}

mod change;
mod dns;
mod failures;
mod learned;
mod monitor;
mod nat;
mod set_up;

fn run_in_namespace(test: &str, body: impl Future<Output = ()>) {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(PATIENCE, body).await.expect("the test takes too long") });
        return;
    }

    // Without root, a user namespace gives the privileges for a network namespace.
    let works = |flags: &&[&str]| Command::new("unshare").args(*flags).arg("true").status().is_ok_and(|s| s.success());
    let Some(flags) = [&["-n"][..], &["-U", "-r", "-n"][..]].into_iter().find(works) else {
        rustguard_skip::missing("no namespaces: run as root, or allow unprivileged user namespaces");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let programs = directory.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    script(&programs.join("resolvconf"), FAKE_RESOLVCONF);
    script(&programs.join("nft"), FAKE_NFT);
    let path = format!("{}:{}:/usr/sbin:/sbin", programs.display(), std::env::var("PATH").unwrap());
    let status = Command::new("unshare")
        .args(flags)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test.split_once("::").unwrap().1])
        .env("PATH", path)
        .env(INSIDE, "privileged")
        .env(DIRECTORY, directory.path())
        .env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", directory.path().join("bus").display()))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed in its namespace: see above");
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn directory() -> PathBuf {
    std::env::var_os(DIRECTORY).unwrap().into()
}

/// Runs shell commands and returns their output, without trailing blanks.
fn sh(commands: &str) -> String {
    let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// An uplink to 192.0.2.0/24 and 2001:db8::/64 with default routes, and the interface of a tunnel.
///
/// The kernel finishes some of this asynchronously, while a test may compare state or wait for events. Link-local
/// addresses are therefore disabled on the uplink, and the test waits for the carrier and the IPv6 address. The kernel
/// holds its lock for changes until it has announced them, so the later change of `lo` waits for the announcements as
/// well.
fn host() {
    sh("ip link add up0 type veth peer name isp0
        ip link set isp0 addrgenmode none up; ip link set up0 addrgenmode none up
        for end in up0 isp0; do until ip link show $end | grep -q 'state UP'; do :; done; done
        ip addr add 192.0.2.2/24 dev up0; ip addr add 2001:db8::2/64 dev up0 nodad");
    await_ipv6_addresses();
    sh("ip link set lo up
        ip route add default via 192.0.2.1; ip route add default via 2001:db8::1");
    tun("wg0");
}

/// Waits until every IPv6 address has its route in the table `local`.
///
/// Adding an IPv6 address only queues work in the kernel (addrconf_dad_start). A kernel thread then announces the
/// address and adds its route (addrconf_dad_completed), even without duplicate address detection. The flag `tentative`
/// does not show when this is done, because an address with `nodad` never has it. Removing an address takes effect at
/// once.
fn await_ipv6_addresses() {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let addresses = sh("ip -6 -o addr | awk '{sub(\"/.*\", \"\", $4); print $4, $2}' | sort");
        let routes = sh("ip -6 route show table local type local | awk '{print $2, $4}' | sort");
        if addresses == routes {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "addresses:\n{addresses}\nlocal routes:\n{routes}");
    }
}

fn tun(name: &str) {
    sh(&format!("ip tuntap add dev {name} mode tun"));
}

/// All state that the set-up may change, for a comparison before and after. Multicast routes are left out, because the
/// kernel adds them at any time.
fn snapshot() -> String {
    await_ipv6_addresses();
    sh("ip addr show dev wg0 | grep -v -e valid_lft -e wg0: ; ip link show wg0 | grep -o 'mtu [0-9]*'
        ip rule; ip -6 rule; ip route show table all | grep -v ff00::/8
        nft list tables | sort | while read -r table; do nft list $table; done")
}

fn nets(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|net| net.parse().unwrap()).collect()
}

fn config(name: &str, addresses: &[&str], allowed_ips: &[&str]) -> HostConfig {
    let mut config = HostConfig::new(name);
    config.addresses = nets(addresses);
    config.allowed_ips = nets(allowed_ips);
    config.record = Some(directory().join(format!("run/{name}.json")));
    config
}

fn config_without_routes(name: &str) -> HostConfig {
    config(name, &["10.9.0.2/24"], &[])
}

fn full_tunnel(name: &str) -> HostConfig {
    config(name, &["10.9.0.2/24", "fd09::2/64"], &["0.0.0.0/0", "::/0"])
}

/// The interface through which a packet to the address leaves.
fn leaves_through(address: &str, mark: u32) -> String {
    let route = sh(&format!("ip route get {address} mark {mark}"));
    let mut words = route.split_whitespace();
    words.find(|word| *word == "dev").unwrap();
    words.next().unwrap().to_owned()
}
