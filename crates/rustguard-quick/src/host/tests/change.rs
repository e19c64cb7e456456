//! Set-ups that change while the tunnel runs.

use super::*;
use crate::host::change::faults;
use std::{cell::RefCell, rc::Rc};

/// The set-ups between which the tests change. Together they have every kind of step.
fn set_ups() -> [HostConfig; 7] {
    let split = config("wg0", &["10.9.0.2/24", "fd09::2/64"], &["10.9.0.0/24", "10.30.0.0/16", "fd30::/64"]);
    let mut other = config("wg0", &["10.9.0.3/24", "fd09::2/128"], &["10.9.0.0/24", "10.40.0.0/16", "fd09::/64"]);
    (other.mtu, other.dns) = (Some(1300), vec!["10.9.0.1".parse().unwrap()]);
    let mut full = full_tunnel("wg0");
    (full.dns, full.dns_search) = (vec!["10.9.0.9".parse().unwrap()], vec!["corp.example".into()]);
    let mut half = config("wg0", &["10.9.0.2/24", "10.9.0.4/24"], &["0.0.0.0/0", "10.30.0.0/16"]);
    (half.fwmark, half.mtu) = (Some(7), Some(1200));
    let mut table = config("wg0", &["10.8.0.1/32"], &["0.0.0.0/0", "10.9.0.0/24"]);
    table.table = Table::Number(77);
    let later = config("wg0", &["10.9.0.4/24"], &["10.30.0.0/16"]);
    [split, other, full, half, table, config("wg0", &["10.9.0.2/32"], &["10.9.0.0/24"]), later]
}

/// The mark of the sockets, which the tests only store.
#[derive(Clone, Default)]
struct Sockets(Rc<RefCell<u32>>);

impl Sockets {
    async fn change(&self, applied: &mut Applied, to: &HostConfig) -> Result<(), ChangeError> {
        let mark = Rc::clone(&self.0);
        let set = async move |to| {
            mark.replace(to);
            Ok(())
        };
        applied.change(to.clone(), set).await
    }
}

/// The host, the sockets' mark and the entry of resolvconf, in an order that does not depend on the earlier set-ups.
fn state(sockets: &Sockets) -> Vec<String> {
    let log = std::fs::read_to_string(directory().join("resolvconf.log")).unwrap_or_default();
    // After a removal there is no entry, as in the beginning.
    let dns = log.rsplit_once("resolvconf -a").map(|(_, entry)| entry).filter(|entry| !entry.contains("resolvconf -d"));
    let mut lines: Vec<_> = snapshot().lines().map(|line| line.replace(" secondary", "")).collect();
    lines.extend(dns.unwrap_or_default().lines().map(|line| format!("dns {line}")));
    lines.push(format!("mark {}", sockets.0.borrow()));
    lines.sort();
    lines
}

/// As [`state`], without the priorities of policy rules: new rules come before old ones.
fn content(sockets: &Sockets) -> Vec<String> {
    let is_rule = |line: &str| {
        line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(":\tfrom") || line.contains(":\tnot")
    };
    let mut lines = state(sockets);
    for line in &mut lines {
        if is_rule(line)
            && let Some((_, rule)) = line.split_once(":\t")
        {
            *line = rule.to_owned();
        }
    }
    lines.sort();
    lines
}

fn difference(a: &[String], b: &[String]) -> String {
    let only = |a: &[String], b: &[String]| a.iter().filter(|line| !b.contains(line)).cloned().collect::<Vec<_>>();
    format!("only before: {:#?}\nonly after: {:#?}", only(a, b), only(b, a))
}

#[test]
fn a_changed_set_up_is_what_a_new_one_would_be() {
    in_namespace!(a_changed_set_up_is_what_a_new_one_would_be, async {
        host();
        let (nothing, set_ups) = (snapshot(), set_ups());
        // An address that is added does not become the first one of its network, so the last set-up is left out.
        let set_ups = &set_ups[..6];
        let sockets = Sockets::default();
        let mut expected = Vec::new();
        for set_up in set_ups {
            let applied = apply(set_up).await.unwrap();
            sockets.0.replace(applied.fwmark().unwrap_or(0));
            expected.push(content(&sockets));
            applied.undo().await.unwrap();
            assert_eq!(snapshot(), nothing);
        }
        for (from, first) in set_ups.iter().enumerate() {
            for (to, second) in set_ups.iter().enumerate() {
                let mut applied = apply(first).await.unwrap();
                sockets.0.replace(applied.fwmark().unwrap_or(0));
                sockets.change(&mut applied, second).await.unwrap();
                let changed = content(&sockets);
                assert_eq!(changed, expected[to], "{from} to {to}: {}", difference(&expected[to], &changed));
                applied.undo().await.unwrap();
                assert_eq!(snapshot(), nothing, "after {from} to {to}");
            }
        }
    });
}

/// Every operation fails once before it is made, and once after.
async fn every_failure_is_undone(from: usize, to: usize, at_least: usize) {
    host();
    let (nothing, set_ups) = (snapshot(), set_ups());
    let sockets = Sockets::default();
    let mut applied = apply(&set_ups[from]).await.unwrap();
    sockets.0.replace(applied.fwmark().unwrap_or(0));
    let (before, record) = (state(&sockets), applied.record().clone());
    let mut failures = 0;
    loop {
        faults::PASS.set(Some(failures));
        let Err(error) = sockets.change(&mut applied, &set_ups[to]).await else { break };
        assert!(error.left.is_empty(), "{failures}: {:?}", error.left);
        let after = state(&sockets);
        assert_eq!(after, before, "after failure {failures}: {}", difference(&before, &after));
        assert_eq!(*applied.record(), record, "after failure {failures}");
        failures += 1;
    }
    faults::PASS.set(None);
    assert!(failures >= at_least, "only {failures} points of failure");
    applied.undo().await.unwrap();
    assert_eq!(snapshot(), nothing);
}

#[test]
fn a_failed_change_of_addresses_and_routes_is_undone() {
    in_namespace!(a_failed_change_of_addresses_and_routes_is_undone, every_failure_is_undone(0, 1, 14));
}

#[test]
fn a_failed_change_of_the_mark_is_undone() {
    in_namespace!(a_failed_change_of_the_mark_is_undone, every_failure_is_undone(2, 3, 20));
}

#[test]
fn a_failed_change_to_a_default_route_is_undone() {
    in_namespace!(a_failed_change_to_a_default_route_is_undone, every_failure_is_undone(4, 2, 16));
}

#[test]
fn a_failed_change_from_a_default_route_is_undone() {
    in_namespace!(a_failed_change_from_a_default_route_is_undone, every_failure_is_undone(3, 5, 14));
}

#[test]
fn the_first_address_of_a_network_is_the_first_again() {
    in_namespace!(the_first_address_of_a_network_is_the_first_again, every_failure_is_undone(3, 6, 14));
}

/// Without `promote_secondaries`, the kernel removes more than the address.
#[test]
fn the_last_address_of_a_network_is_replaced() {
    in_namespace!(the_last_address_of_a_network_is_replaced, async {
        host();
        sh("sysctl -qw net.ipv4.conf.wg0.promote_secondaries=0 net.ipv4.conf.all.promote_secondaries=0");
        let first = config("wg0", &["10.9.0.2/24"], &["10.30.0.0/16"]);
        let second = config("wg0", &["10.9.0.3/24"], &["10.30.0.0/16"]);
        let mut applied = apply(&first).await.unwrap();
        Sockets::default().change(&mut applied, &second).await.unwrap();
        let now = sh("ip -4 -o addr show dev wg0; ip route show dev wg0");
        assert!(now.contains("10.9.0.3/24") && !now.contains("10.9.0.2/") && now.contains("10.30.0.0/16"), "{now}");
        applied.undo().await.unwrap();
    });
}

/// An interface in another network namespace is treated as missing.
#[test]
fn without_the_interface_only_what_the_host_does_not_see_can_change() {
    in_namespace!(without_the_interface_only_what_the_host_does_not_see_can_change, async {
        host();
        let mut config = config("wg0", &["10.9.0.2/24"], &["10.30.0.0/16"]);
        config.table = Table::Off;
        let mut applied = apply(&config).await.unwrap();
        sh("ip link del wg0");
        config.allowed_ips = nets(&["10.30.0.0/16", "0.0.0.0/0"]);
        config.endpoints = vec!["192.0.2.9:7".parse().unwrap()];
        Sockets::default().change(&mut applied, &config).await.unwrap();
        assert_eq!(*applied.config(), config);
        for other in [
            HostConfig { table: Table::Auto, ..config.clone() },
            HostConfig { addresses: nets(&["10.9.0.3/24"]), ..config.clone() },
            HostConfig { mtu: Some(1300), ..config.clone() },
        ] {
            let error = Sockets::default().change(&mut applied, &other).await.unwrap_err();
            assert!(matches!(error.cause, HostError::InterfaceGone(_)) && error.left.is_empty(), "{error}");
        }
        applied.undo().await.unwrap();
    });
}

#[test]
fn a_conflict_leaves_the_set_up_and_says_why() {
    in_namespace!(a_conflict_leaves_the_set_up_and_says_why, async {
        host();
        sh("ip route add 10.40.0.0/16 dev up0");
        let [split, other, full, ..] = set_ups();
        let sockets = Sockets::default();
        let mut applied = apply(&split).await.unwrap();
        let before = state(&sockets);
        let error = sockets.change(&mut applied, &other).await.unwrap_err();
        assert!(matches!(error.cause, HostError::RouteExists { .. }) && error.left.is_empty(), "{error}");
        assert_eq!(state(&sockets), before);
        // The guard fails, and so does its removal.
        std::fs::write(directory().join("nft.fails"), "").unwrap();
        let error = sockets.change(&mut applied, &full).await.unwrap_err();
        std::fs::remove_file(directory().join("nft.fails")).unwrap();
        assert!(error.to_string().contains("no nf_tables here"), "{error}");
        assert!(error.left.iter().all(|left| left.to_string().contains("no nf_tables here")), "{:?}", error.left);
        assert!(!error.left.is_empty(), "what is left has to be said");
        // The record still has the guard, so the end of the tunnel tries again.
        assert!(applied.record().steps.iter().any(|step| matches!(step, Step::Guard { .. })));
        applied.undo().await.unwrap();
    });
}

#[test]
fn a_process_that_is_killed_in_a_change_leaves_nothing_unknown() {
    in_namespace!(a_process_that_is_killed_in_a_change_leaves_nothing_unknown, async {
        let [_, _, full, half, ..] = set_ups();
        let path = full.record.clone().unwrap();
        if std::env::var(INSIDE).unwrap() == "victim" {
            let mut applied = apply(&full).await.unwrap();
            // The mark changes in the middle: old and new rules exist.
            let killed = async |_| {
                sh("kill -KILL $PPID");
                Ok(())
            };
            let _ = applied.change(half, killed).await;
            return;
        }
        host();
        let before = snapshot();
        let mut again = Command::new(std::env::current_exe().unwrap());
        again
            .args(["--exact", "host::tests::change::a_process_that_is_killed_in_a_change_leaves_nothing_unknown"])
            .env(INSIDE, "victim");
        assert_eq!(again.stdout(Stdio::null()).status().unwrap().signal(), Some(9));
        assert!(sh("ip rule").contains("0x7"), "the new rules are there");
        sh("ip link del wg0");
        assert!(cleanup(&path).await.unwrap());
        tun("wg0");
        assert_eq!(snapshot(), before);
    });
}
