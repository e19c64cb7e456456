//! The set-up in real network namespaces.
//!
//! Each test runs the test binary again under `unshare`, as one process in a network namespace of its own, with a
//! directory for its files and programs that stand in for `resolvconf` and, when told to, for a failing `nft`. There,
//! `wg0` is a tun interface nobody reads from, and `up0` is one end of a veth pair: the host's way to the internet.

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

/// Notes how it was called and what it read.
const FAKE_RESOLVCONF: &str = r#"#!/bin/sh
{ echo "resolvconf $*"; case $1 in -a) cat;; esac; } >> $RUSTGUARD_TEST_DIRECTORY/resolvconf.log
"#;

/// The real one, unless a test wants it to fail.
const FAKE_NFT: &str = r#"#!/bin/sh
if [ -e $RUSTGUARD_TEST_DIRECTORY/nft.fails ]; then cat > /dev/null; echo 'no nf_tables here' >&2; exit 1; fi
PATH=${PATH#*:} exec nft "$@"
"#;

/// What wg-quick needs of `wg`: a place for the mark, and one peer.
const FAKE_WG: &str = r#"#!/bin/sh
mark=$RUSTGUARD_TEST_DIRECTORY/mark
case "$1 $3" in
    'show ') echo wg0;;
    'show allowed-ips') printf 'KEY\t10.9.0.0/24 10.9.0.8/32 10.30.0.0/16 0.0.0.0/0 fd30::/64 ::/0\n';;
    'show fwmark') cat $mark 2> /dev/null || echo off;;
    'set fwmark') echo $4 > $mark;;
esac
"#;

/// Longer than any test takes, on a loaded machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names the test function it stands in, for the process that runs it again.
macro_rules! in_namespace {
    ($name:ident, $body:expr) => {
        run_in_namespace(concat!(module_path!(), "::", stringify!($name)), $body)
    };
}

mod learned;

fn run_in_namespace(test: &str, body: impl Future<Output = ()>) {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(PATIENCE, body).await.expect("the test takes too long") });
        return;
    }

    // Without root, a user namespace gives the privileges for a network namespace.
    let works = |flags: &&[&str]| Command::new("unshare").args(*flags).arg("true").status().is_ok_and(|s| s.success());
    let Some(flags) = [&["-n"][..], &["-U", "-r", "-n"][..]].into_iter().find(works) else {
        writeln!(std::io::stderr(), "SKIPPED {test}: no privileges, and no user namespaces here").unwrap();
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

/// Runs shell commands and returns what they print, without trailing blanks.
fn sh(commands: &str) -> String {
    let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// An uplink to 192.0.2.0/24 and 2001:db8::/64 with default routes, and the interface of a tunnel.
///
/// The kernel finishes some of this later, in the middle of whatever a test compares or listens to. Link-local addresses are
/// switched off on the uplink for that reason. The carrier and the IPv6 address are awaited. The kernel holds its lock for
/// changes until it has announced them, so the change of `lo` afterwards waits for the announcements as well.
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
/// Adding an IPv6 address only queues work in the kernel (addrconf_dad_start). A kernel thread then announces the address and
/// adds its route (addrconf_dad_completed), also when duplicates are not looked for. The flag `tentative` does not tell when:
/// an address with `nodad` never has it. Removing an address takes effect at once.
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

/// Everything the set-up may touch, to compare before and after. The kernel adds multicast routes to an interface as
/// it pleases.
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

/// The interface a packet to the address leaves through.
fn leaves_through(address: &str, mark: u32) -> String {
    let route = sh(&format!("ip route get {address} mark {mark}"));
    let mut words = route.split_whitespace();
    words.find(|word| *word == "dev").unwrap();
    words.next().unwrap().to_owned()
}

#[test]
fn addresses_and_routes_come_and_go() {
    in_namespace!(addresses_and_routes_come_and_go, async {
        host();
        sh("ip link set wg0 up");
        let before = snapshot();
        let config = config(
            "wg0",
            &["10.9.0.2/24", "10.8.0.2/32", "fd09::2/64"],
            &["10.9.0.7/32", "10.20.0.0/16", "10.20.3.0/24", "fd20::/48", "0.0.0.0/1", "10.20.3.4/24"],
        );
        let applied = apply(&config).await.unwrap();

        let addresses = sh("ip -o addr show dev wg0 | grep -v fe80 | awk '{print $4}'");
        assert_eq!(addresses, "10.9.0.2/24\n10.8.0.2/32\nfd09::2/64");
        assert!(sh("ip link show wg0").contains("mtu 1420"));
        // 10.9.0.7 is covered by the address's own network, 10.20.3.4/24 is 10.20.3.0/24 again.
        let routes = sh("ip route show dev wg0 | awk '{print $1, $2, $3}'");
        assert_eq!(
            routes,
            "0.0.0.0/1 scope link\n10.9.0.0/24 proto kernel\n10.20.0.0/16 scope link\n10.20.3.0/24 scope link"
        );
        assert!(sh("ip -6 route show dev wg0").contains("fd20::/48"));
        assert_eq!(applied.fwmark(), None);
        assert_eq!(leaves_through("10.20.3.1", 0), "wg0");
        // Nothing of this outlives the interface, so there is nothing to record.
        assert!(!config.record.unwrap().exists());

        applied.undo().await.unwrap();
        assert_eq!(snapshot(), before);
    });
}

#[test]
fn a_table_of_ones_own_takes_every_route() {
    in_namespace!(a_table_of_ones_own_takes_every_route, async {
        host();
        let before = snapshot();
        let mut config = config("wg0", &["10.9.0.2/24"], &["0.0.0.0/0", "10.9.0.7/32"]);
        config.table = Table::Number(1234);
        let applied = apply(&config).await.unwrap();
        assert_eq!(
            sh("ip route show table 1234"),
            "default dev wg0 scope link linkdown\n10.9.0.7 dev wg0 scope link linkdown"
        );
        assert_eq!(sh("ip rule | wc -l"), "3");
        assert_eq!(choose_fwmark(&config).await.unwrap(), None);
        applied.undo().await.unwrap();
        assert_eq!(snapshot(), before);

        config.table = Table::Off;
        let applied = apply(&config).await.unwrap();
        assert_eq!(sh("ip route show dev wg0"), "10.9.0.0/24 proto kernel scope link src 10.9.0.2 linkdown");
        applied.undo().await.unwrap();
        assert_eq!(snapshot(), before);
    });
}

#[test]
fn a_default_route_is_chosen_by_policy_and_guarded() {
    in_namespace!(a_default_route_is_chosen_by_policy_and_guarded, async {
        host();
        let before = snapshot();
        let mut config = full_tunnel("wg0");
        sh("ip route add 198.51.100.0/24 dev up0 table 51820");
        config.fwmark = choose_fwmark(&config).await.unwrap();
        assert_eq!(config.fwmark, Some(51821), "the first table without routes");
        let applied = apply(&config).await.unwrap();
        assert_eq!((applied.fwmark(), applied.warnings()), (Some(51821), &[][..]));

        let rules =
            "32764:\tfrom all lookup main suppress_prefixlength 0\n32765:\tnot from all fwmark 0xca6d lookup 51821";
        assert!(sh("ip rule").contains(rules), "{}", sh("ip rule"));
        assert!(sh("ip -6 rule").contains(rules), "{}", sh("ip -6 rule"));
        assert_eq!(sh("sysctl -n net.ipv4.conf.all.src_valid_mark"), "1");
        for (address, local) in [("203.0.113.9", "192.0.2.7"), ("2001:db8:9::9", "2001:db8::7")] {
            assert_eq!(leaves_through(address, 0), "wg0");
            assert_eq!(leaves_through(address, 51821), "up0");
            assert_eq!(leaves_through(local, 0), "up0");
        }
        let guard = sh("nft list ruleset");
        for rule in [
            "table ip rustguard-wg0",
            "table ip6 rustguard-wg0",
            "iifname != \"wg0\" ip daddr 10.9.0.2 fib saddr type != local drop",
            "iifname != \"wg0\" ip6 daddr fd09::2 fib saddr type != local drop",
            "meta l4proto udp meta mark set ct mark",
            "meta l4proto udp meta mark 0x0000ca6d ct mark set meta mark",
        ] {
            assert!(guard.contains(rule), "no `{rule}` in {guard}");
        }

        applied.undo().await.unwrap();
        sh("ip route del 198.51.100.0/24 table 51820");
        assert_eq!(snapshot(), before);
        assert!(!config.record.unwrap().exists());
    });
}

/// wg-quick itself, on the same host with a stand-in for `wg`, leaves the same addresses, routes, rules and nft
/// rules.
#[test]
fn the_result_is_that_of_wg_quick() {
    in_namespace!(the_result_is_that_of_wg_quick, async {
        let Some(original) = command::find_program("wg-quick") else {
            writeln!(std::io::stderr(), "SKIPPED the comparison with wg-quick: it is not installed").unwrap();
            return;
        };
        host();
        sh("ip link del wg0");
        let directory = directory();
        // wg-quick looks for programs next to itself first.
        std::fs::copy(original, directory.join("bin/wg-quick")).unwrap();
        script(&directory.join("bin/wg"), FAKE_WG);
        script(&directory.join("bin/userspace"), "#!/bin/sh\nexec ip tuntap add dev $1 mode tun\n");
        std::fs::write(
            directory.join("wg0.conf"),
            "[Interface]\nAddress = 10.9.0.2/24, fd09::2/64\nDNS = 10.9.0.1, corp.example\n",
        )
        .unwrap();
        let wg_quick = |verb: &str| {
            sh(&format!(
                "WG_QUICK_USERSPACE_IMPLEMENTATION=userspace wg-quick {verb} $RUSTGUARD_TEST_DIRECTORY/wg0.conf"
            ))
        };
        let log = directory.join("resolvconf.log");

        wg_quick("up");
        let expected = snapshot().replace("wg-quick-wg0", "rustguard-wg0");
        wg_quick("down");
        let expected_dns = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();

        tun("wg0");
        let mut config = config(
            "wg0",
            &["10.9.0.2/24", "fd09::2/64"],
            &["10.9.0.0/24", "10.9.0.8/32", "10.30.0.0/16", "0.0.0.0/0", "fd30::/64", "::/0"],
        );
        config.dns = vec!["10.9.0.1".parse().unwrap()];
        config.dns_search = vec!["corp.example".into()];
        let applied = apply(&config).await.unwrap();
        assert_eq!(snapshot(), expected);
        applied.undo().await.unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), expected_dns);
    });
}

#[test]
fn the_mtu_is_the_lowest_of_the_paths_to_the_endpoints() {
    in_namespace!(the_mtu_is_the_lowest_of_the_paths_to_the_endpoints, async {
        host();
        sh("ip link set up0 mtu 1400
            ip route add 198.51.100.0/24 via 192.0.2.1 mtu 1300
            ip route add unreachable 203.0.113.0/24");
        let mut config = config("wg0", &["10.9.0.2/24"], &[]);
        let endpoints = |list: &[&str]| list.iter().map(|endpoint| endpoint.parse().unwrap()).collect::<Vec<_>>();
        for (list, expected) in [
            (&["192.0.2.9:1"][..], 1320),
            (&["[2001:db8::9]:1"], 1320),
            (&["198.51.100.9:1"], 1220),
            (&["192.0.2.9:1", "198.51.100.9:1"], 1220),
            (&["127.0.0.1:1"], 65456),
            // Without an endpoint that can be reached: the default route.
            (&["203.0.113.9:1"], 1320),
            (&[], 1320),
        ] {
            config.endpoints = endpoints(list);
            assert_eq!(tunnel_mtu(&config).await.unwrap(), expected, "{list:?}");
        }

        // An interface that begins below what IPv6 needs.
        sh("ip link set wg0 mtu 1000");
        let mut small = config.clone();
        small.addresses = nets(&["fd09::2/64"]);
        apply(&small).await.unwrap().undo().await.unwrap();

        // IPv6 inside needs 1,280 whatever the path carries, and whatever the configuration says.
        config.endpoints = endpoints(&["198.51.100.9:1"]);
        config.addresses = nets(&["fd09::2/64"]);
        assert_eq!(tunnel_mtu(&config).await.unwrap(), 1280);
        config.mtu = Some(1279);
        assert!(matches!(apply(&config).await, Err(HostError::MtuTooSmall { mtu: 1279, .. })));
        config.mtu = Some(9000);
        let applied = apply(&config).await.unwrap();
        assert_eq!(applied.mtu(), 9000);
        assert!(sh("ip link show wg0").contains("mtu 9000"));

        // The tunnel as default route does not count as the path to its own endpoint.
        applied.undo().await.unwrap();
        let mut config = full_tunnel("wg0");
        config.endpoints = endpoints(&["203.0.112.9:1"]);
        let applied = apply(&config).await.unwrap();
        config.fwmark = applied.fwmark();
        assert_eq!((applied.mtu(), tunnel_mtu(&config).await.unwrap()), (1320, 1320));
        sh("ip -6 route change default via 2001:db8::1 mtu 1380");
        config.endpoints = endpoints(&["[2001:db8:5::9]:1"]);
        assert_eq!(tunnel_mtu(&config).await.unwrap(), 1300);
        sh("ip route del default; ip -6 route del default");
        assert_eq!(tunnel_mtu(&config).await.unwrap(), 1420);
    });
}

#[test]
fn a_failure_in_the_middle_is_rolled_back() {
    in_namespace!(a_failure_in_the_middle_is_rolled_back, async {
        host();
        sh("ip route add 10.20.0.0/16 dev up0");
        let before = snapshot();
        let mut config = config(
            "wg0",
            &["10.9.0.2/24", "fd09::2/64"],
            &["10.20.3.0/24", "10.20.0.0/16", "10.30.0.0/16", "0.0.0.0/0"],
        );
        config.dns = vec!["10.9.0.1".parse().unwrap()];

        // Somebody else's route, met after addresses, link, DNS and another route; it stays.
        let error = apply(&config).await.unwrap_err();
        assert!(matches!(error, HostError::RouteExists { table: 254, .. }), "{error}");
        assert_eq!(snapshot(), before);
        let log = std::fs::read_to_string(directory().join("resolvconf.log")).unwrap();
        assert!(log.ends_with("resolvconf -d wg0 -f\n"), "{log}");

        // The last step of all.
        sh("ip route del 10.20.0.0/16 dev up0");
        let before = snapshot();
        std::fs::write(directory().join("nft.fails"), "").unwrap();
        let error = apply(&config).await.unwrap_err();
        assert!(error.to_string().contains("no nf_tables here"), "{error}");
        std::fs::remove_file(directory().join("nft.fails")).unwrap();
        assert_eq!(snapshot(), before);
        // Undoing the guard failed as well, of course: the record stays, and the next one to come takes care of it.
        let record = config.record.unwrap();
        assert!(record.exists());
        assert!(cleanup(&record).await.unwrap());
        assert!(!record.exists());
    });
}

#[test]
fn what_a_killed_process_left_is_cleaned_up() {
    in_namespace!(what_a_killed_process_left_is_cleaned_up, async {
        let mut config = full_tunnel("wg0");
        config.dns = vec!["10.9.0.1".parse().unwrap()];
        let path = config.record.clone().unwrap();
        if std::env::var(INSIDE).unwrap() == "victim" {
            let _applied = apply(&config).await.unwrap();
            sh("kill -KILL $PPID");
        }
        host();
        let before = snapshot();
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "host::tests::what_a_killed_process_left_is_cleaned_up"]).env(INSIDE, "victim");
        assert_eq!(again.stdout(Stdio::null()).status().unwrap().signal(), Some(9));

        let record: Record = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let kinds = |wanted: fn(&Step) -> bool| record.steps.iter().filter(|step| wanted(step)).count();
        assert_eq!(kinds(|step| matches!(step, Step::Dns(_))), 1);
        assert_eq!(kinds(|step| matches!(step, Step::Rule(_))), 4);
        assert_eq!(kinds(|step| matches!(step, Step::Guard { v4: true, v6: true })), 1);
        assert_eq!(record.steps.len(), 6, "what vanishes with the interface needs no record");
        // With a real tunnel the kernel does that: a tun goes with the process that made it.
        sh("ip link del wg0");
        assert_eq!(sh("ip rule | wc -l; nft list tables | wc -l"), "5\n2");

        // `up` again: the new set-up first clears the old one away, and ends up with the same numbers.
        tun("wg0");
        let again = apply(&config).await.unwrap();
        assert_eq!(again.fwmark(), Some(51820));
        assert_eq!(sh("ip rule | wc -l; nft list tables | wc -l"), "5\n2");
        let log = std::fs::read_to_string(directory().join("resolvconf.log")).unwrap();
        assert_eq!(log.matches("resolvconf -d wg0 -f").count(), 1);

        // Or `down`, with the interface gone.
        drop(again);
        sh("ip link del wg0");
        assert!(cleanup(&path).await.unwrap());
        tun("wg0");
        assert_eq!(snapshot(), before);
        assert!(!cleanup(&path).await.unwrap());

        // Killed between noting a step and taking it: nothing to undo, and no error.
        std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        assert!(cleanup(&path).await.unwrap());
        assert_eq!(snapshot(), before);

        // What happened in another namespace is not for this one to undo.
        let elsewhere = Record { namespace: "net:[1]".into(), ..record };
        std::fs::write(&path, serde_json::to_vec(&elsewhere).unwrap()).unwrap();
        assert!(!cleanup(&path).await.unwrap());
        apply(&config_without_routes("wg0")).await.unwrap().undo().await.unwrap();
        assert!(path.exists());

        std::fs::write(&path, "{").unwrap();
        assert!(matches!(cleanup(&path).await, Err(HostError::Record { action: "read", .. })));
    });
}

#[test]
fn a_second_default_route_rides_on_the_first() {
    in_namespace!(a_second_default_route_rides_on_the_first, async {
        host();
        tun("wg1");
        let before = snapshot();
        let first = apply(&full_tunnel("wg0")).await.unwrap();
        let second = apply(&config("wg1", &["10.10.0.2/24"], &["0.0.0.0/0"])).await.unwrap();
        assert_eq!((first.fwmark(), second.fwmark()), (Some(51820), Some(51821)));
        let paths = || [0, 51821, 51820].map(|mark| leaves_through("203.0.113.9", mark));
        assert_eq!(paths(), ["wg1", "wg0", "up0"], "{}", sh("ip rule"));
        // The second has no IPv6: there the first carries everything but itself.
        assert_eq!([0, 51821, 51820].map(|mark| leaves_through("2001:db8:9::9", mark)), ["wg0", "wg0", "up0"]);
        assert_eq!(leaves_through("192.0.2.7", 0), "up0");

        // In either order of leaving and coming back there is no circle.
        first.undo().await.unwrap();
        assert_eq!(paths(), ["wg1", "up0", "up0"], "{}", sh("ip rule"));
        let first = apply(&full_tunnel("wg0")).await.unwrap();
        // 51820 is still in a rule of the second tunnel, so this is another mark, and the first now rides on the
        // second.
        assert_eq!(first.fwmark(), Some(51822));
        assert_eq!(
            [0, 51822, 51821].map(|mark| leaves_through("203.0.113.9", mark)),
            ["wg0", "wg1", "up0"],
            "{}",
            sh("ip rule")
        );

        // The same mark by configuration is the same table: refused, and nothing of the others is touched.
        tun("wg2");
        let rules = sh("ip rule");
        let mut third = config("wg2", &["10.11.0.2/24"], &["0.0.0.0/0"]);
        third.fwmark = Some(51821);
        let error = apply(&third).await.unwrap_err();
        assert!(matches!(error, HostError::RouteExists { table: 51821, .. }), "{error}");
        assert_eq!(sh("ip rule"), rules);

        second.undo().await.unwrap();
        assert_eq!([0, 51822].map(|mark| leaves_through("203.0.113.9", mark)), ["wg0", "up0"]);
        first.undo().await.unwrap();
        assert_eq!(paths(), ["up0", "up0", "up0"]);
        sh("ip link del wg2");
        assert_eq!(snapshot(), before);
    });
}

#[test]
fn ipv6_that_is_disabled_is_named() {
    in_namespace!(ipv6_that_is_disabled_is_named, async {
        host();
        sh("sysctl -qw net.ipv6.conf.wg0.disable_ipv6=1");
        let before = snapshot();
        let error = apply(&config("wg0", &["10.9.0.2/24", "fd09::2/64"], &[])).await.unwrap_err();
        assert!(matches!(error, HostError::Ipv6Disabled { .. }), "{error}");
        assert!(error.to_string().contains("fd09::2/64"), "{error}");
        let error = apply(&config("wg0", &["10.9.0.2/24"], &["0.0.0.0/0", "::/0"])).await.unwrap_err();
        assert!(matches!(error, HostError::Ipv6Disabled { .. }), "{error}");
        assert_eq!(snapshot(), before);
        apply(&config("wg0", &["10.9.0.2/24"], &["0.0.0.0/0"])).await.unwrap().undo().await.unwrap();
    });
}

#[test]
fn bad_names_and_missing_interfaces_are_refused() {
    in_namespace!(bad_names_and_missing_interfaces_are_refused, async {
        for name in ["", ".", "..", "-d", "a b", "wg0\"; flush ruleset", "sixteen-letters-"] {
            assert!(matches!(apply(&HostConfig::new(name)).await, Err(HostError::InterfaceName(_))), "{name}");
        }
        assert!(matches!(apply(&HostConfig::new("wg9")).await, Err(HostError::NoSuchInterface(_))));
        // An interface name that is not an nft identifier.
        host();
        tun("wg+=0");
        let applied = apply(&config("wg+=0", &["10.9.0.2/24"], &["0.0.0.0/0"])).await.unwrap();
        assert!(sh("nft list tables").contains("rustguard-wg_2b_3d0"));
        applied.undo().await.unwrap();
        assert_eq!(sh("nft list tables"), "");
    });
}

#[test]
fn without_privilege_the_error_says_what_to_do() {
    in_namespace!(without_privilege_the_error_says_what_to_do, async {
        if std::env::var(INSIDE).unwrap() == "unprivileged" {
            let error = apply(&config("wg0", &["10.9.0.2/24"], &[])).await.unwrap_err();
            assert!(matches!(error, HostError::Kernel(KernelError::Permission { .. })), "{error}");
            assert!(error.to_string().contains("`wg0`") && error.to_string().contains("sudo"), "{error}");
            return;
        }
        host();
        let status = Command::new("setpriv")
            .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "host::tests::without_privilege_the_error_says_what_to_do"])
            .env(INSIDE, "unprivileged")
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    });
}

#[test]
fn resolvconf_gets_what_wg_quick_gives_it() {
    in_namespace!(resolvconf_gets_what_wg_quick_gives_it, async {
        host();
        let mut config = config("wg0", &["10.9.0.2/24"], &[]);
        config.dns = vec!["10.9.0.1".parse().unwrap(), "fd09::1".parse().unwrap()];
        config.dns_search = vec!["corp.example".into(), "example".into()];
        let applied = apply(&config).await.unwrap();
        let log = directory().join("resolvconf.log");
        let added = "resolvconf -a wg0 -m 0 -x\nnameserver 10.9.0.1\nnameserver fd09::1\nsearch corp.example example\n";
        assert_eq!(std::fs::read_to_string(&log).unwrap(), added);
        applied.undo().await.unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), format!("{added}resolvconf -d wg0 -f\n"));
    });
}

#[test]
fn resolved_is_told_over_the_bus() {
    in_namespace!(resolved_is_told_over_the_bus, async {
        host();
        let Some((_bus, calls)) = fake_resolved().await else {
            writeln!(std::io::stderr(), "SKIPPED resolved over D-Bus: there is no dbus-daemon").unwrap();
            return;
        };
        let mut config = config("wg0", &["10.9.0.2/24"], &[]);
        config.dns = vec!["10.9.0.1".parse().unwrap(), "fd09::1".parse().unwrap()];
        config.dns_search = vec!["corp.example".into()];
        let applied = apply(&config).await.unwrap();
        let index = link_index("wg0").await.unwrap().unwrap();
        applied.undo().await.unwrap();
        assert!(!directory().join("resolvconf.log").exists());
        let calls = calls.lock().unwrap();
        assert_eq!(
            *calls,
            [
                format!(
                    "SetLinkDNS {:?}",
                    (index, [(2, vec![10, 9, 0, 1]), (10, vec![0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])])
                ),
                format!("SetLinkDomains {:?}", (index, [("corp.example", false), (".", true)])),
                format!("RevertLink {index}"),
            ]
        );
    });
}

#[test]
fn the_monitor_sees_the_interface_and_the_network() {
    in_namespace!(the_monitor_sees_the_interface_and_the_network, async {
        host();
        assert!(link_exists("wg0").await.unwrap());
        let index = link_index("wg0").await.unwrap().unwrap();
        let mut monitor = Monitor::new(index).await.unwrap();
        sh("ip link set wg0 mtu 1280");
        assert_eq!(monitor.next().await, Some(HostEvent::LinkMtu(1280)));
        sh("ip link set wg0 up");
        assert_eq!(monitor.next().await, Some(HostEvent::LinkUp));
        // What happens on the interface itself is not the network; what follows is.
        sh("ip addr add 10.9.0.2/24 dev wg0; ip route add 10.20.0.0/16 dev wg0; ip link set wg0 mtu 1290");
        assert_eq!(monitor.next().await, Some(HostEvent::LinkMtu(1290)));
        sh("ip route add 10.30.0.0/16 dev up0");
        assert_eq!(monitor.next().await, Some(HostEvent::NetworkChanged));
        sh("ip link set wg0 down");
        loop {
            match monitor.next().await {
                Some(HostEvent::NetworkChanged) => {}
                event => break assert_eq!(event, Some(HostEvent::LinkDown)),
            }
        }

        // A bridge's port that leaves the bridge is announced as deleted too, by the bridge.
        sh("ip link add br0 type bridge; ip link set isp0 master br0");
        let mut port = Monitor::new(link_index("isp0").await.unwrap().unwrap()).await.unwrap();
        sh("ip link set isp0 nomaster; ip link set isp0 mtu 1300");
        loop {
            match port.next().await {
                Some(HostEvent::NetworkChanged) => {}
                event => break assert_eq!(event, Some(HostEvent::LinkMtu(1300))),
            }
        }

        let gone = tokio::spawn(wait_link_gone("wg0"));
        assert!(delete_link("wg0").await.unwrap());
        gone.await.unwrap().unwrap();
        assert!(!delete_link("wg0").await.unwrap());
        while monitor.next().await != Some(HostEvent::LinkDeleted) {}
        assert_eq!(monitor.next().await, None);
        let mut late = Monitor::new(index).await.unwrap();
        assert_eq!(late.next().await, Some(HostEvent::LinkDeleted));
    });
}

#[test]
fn many_routes_take_no_time() {
    in_namespace!(many_routes_take_no_time, async {
        host();
        let mut config = config("wg0", &["10.9.0.2/24"], &[]);
        config.allowed_ips =
            (0..20_000u32).map(|n| ipnet::Ipv4Net::new((0x1400_0000 + (n << 8)).into(), 24).unwrap().into()).collect();
        let start = std::time::Instant::now();
        let applied = apply(&config).await.unwrap();
        writeln!(std::io::stderr(), "20,000 routes added in {:?}", start.elapsed()).unwrap();
        assert_eq!(sh("ip route show dev wg0 | wc -l"), "20001");
        applied.undo().await.unwrap();
        assert_eq!(sh("ip route show dev wg0"), "");
    });
}

type Calls = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

/// A bus with a service on it that notes what resolved would be asked to do. The bus ends with the returned child.
async fn fake_resolved() -> Option<(tokio::process::Child, Calls)> {
    use futures_util::StreamExt;
    use tokio::io::AsyncBufReadExt;

    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap();
    let mut bus = tokio::process::Command::new("dbus-daemon")
        .args(["--session", "--nofork", "--print-address", &format!("--address={address}")])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    // It prints its address once it listens.
    let mut ready = String::new();
    tokio::io::BufReader::new(bus.stdout.take().unwrap()).read_line(&mut ready).await.unwrap();

    let connection = zbus::Connection::system().await.unwrap();
    let mut messages = zbus::MessageStream::from(&connection);
    connection.request_name("org.freedesktop.resolve1").await.unwrap();
    let calls = Calls::default();
    let noted = calls.clone();
    tokio::spawn(async move {
        while let Some(Ok(message)) = messages.next().await {
            if message.message_type() != zbus::message::Type::MethodCall {
                continue;
            }
            let header = message.header();
            let (body, member) = (message.body(), header.member().unwrap().to_string());
            let call = match member.as_str() {
                "SetLinkDNS" => format!("{member} {:?}", body.deserialize::<(i32, Vec<(i32, Vec<u8>)>)>().unwrap()),
                "SetLinkDomains" => format!("{member} {:?}", body.deserialize::<(i32, Vec<(&str, bool)>)>().unwrap()),
                _ => format!("{member} {:?}", body.deserialize::<i32>().unwrap()),
            };
            noted.lock().unwrap().push(call);
            connection.reply(&header, &()).await.unwrap();
        }
    });
    Some((bus, calls))
}
