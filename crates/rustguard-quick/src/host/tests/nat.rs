//! Address translation and forwarding for a gateway.

use super::*;

fn gateway(name: &str, pools: &[&str], networks: &[&str]) -> HostConfig {
    let mut config = config(name, &["10.9.0.2/24"], &[]);
    config.nat = Some(Gateway { pools: nets(pools), networks: nets(networks) });
    config
}

/// The forwarding settings, and whether the uplink accepts router advertisements.
fn switches() -> String {
    sh("cd /proc/sys/net; cat ipv4/ip_forward ipv6/conf/all/forwarding ipv6/conf/up0/accept_ra").replace('\n', " ")
}

#[test]
fn only_the_families_that_are_needed_are_forwarded_and_translated() {
    in_namespace!(only_the_families_that_are_needed_are_forwarded_and_translated, async {
        host();
        let (before, off) = (snapshot(), switches());
        assert_eq!(off, "0 0 1");
        let v4 = apply(&gateway("wg0", &["10.9.0.0/24", "fd09::/64"], &["192.0.2.0/24"])).await.unwrap();
        assert_eq!(switches(), "1 0 1");
        let rules = sh("nft list ruleset");
        assert!(
            rules.contains("ip saddr 10.9.0.0/24 ip daddr 192.0.2.0/24 oifname != { \"lo\", \"wg0\" } masquerade"),
            "{rules}"
        );
        assert!(!rules.contains("ip6"), "{rules}");
        v4.undo().await.unwrap();
        assert_eq!((snapshot(), switches()), (before.clone(), off.clone()));

        let both = apply(&gateway("wg0", &["10.9.0.7/24", "fd09::/64"], &["0.0.0.0/0", "::/0"])).await.unwrap();
        assert_eq!(switches(), "1 1 2");
        let rules = sh("nft list ruleset");
        assert!(
            rules.contains("ip saddr 10.9.0.0/24 oifname") && rules.contains("ip6 saddr fd09::/64 oifname"),
            "{rules}"
        );
        both.undo().await.unwrap();
        assert_eq!((snapshot(), switches()), (before.clone(), off.clone()));

        // A pool of one family, and a network of the other: there is nothing to translate.
        let none = apply(&gateway("wg0", &["10.9.0.0/24"], &["::/0"])).await.unwrap();
        assert_eq!((switches(), sh("nft list ruleset")), (off, String::new()));
        none.undo().await.unwrap();
        assert_eq!(snapshot(), before);
    });
}

#[test]
fn the_last_of_two_gateways_switches_forwarding_off() {
    in_namespace!(the_last_of_two_gateways_switches_forwarding_off, async {
        host();
        tun("wg1");
        let networks = ["192.0.2.0/24", "2001:db8::/64"];
        let one = apply(&gateway("wg0", &["10.9.0.0/24", "fd09::/64"], &networks)).await.unwrap();
        let mut config = gateway("wg1", &["10.8.0.0/24", "fd08::/64"], &networks);
        config.addresses = nets(&["10.8.0.2/24"]);
        let two = apply(&config).await.unwrap();
        one.undo().await.unwrap();
        assert_eq!(switches(), "1 1 2", "the second still needs it");
        assert!(sh("nft list tables").contains("rustguard_nat-wg1"), "{}", sh("nft list tables"));
        two.undo().await.unwrap();
        assert_eq!((switches(), sh("nft list tables")), ("0 0 1".to_owned(), String::new()));
    });
}

#[test]
fn a_killed_gateway_is_undone_and_what_others_changed_stays() {
    in_namespace!(a_killed_gateway_is_undone_and_what_others_changed_stays, async {
        host();
        let before = snapshot();
        let config = gateway("wg0", &["10.9.0.0/24", "fd09::/64"], &["192.0.2.0/24", "2001:db8::/64"]);
        let _killed = apply(&config).await.unwrap();
        sh("echo 0 > /proc/sys/net/ipv6/conf/up0/accept_ra");
        sh("ip link delete wg0");
        assert!(cleanup(&config.record.clone().unwrap()).await.unwrap());
        assert_eq!(switches(), "0 0 0", "accept_ra is what somebody else set");
        tun("wg0");
        assert_eq!(sh("nft list tables"), "");

        // Without nft, nothing is switched on.
        sh("touch $RUSTGUARD_TEST_DIRECTORY/nft.fails");
        let error = apply(&config).await.unwrap_err().to_string();
        assert!(error.contains("no nf_tables here"), "{error}");
        sh("rm $RUSTGUARD_TEST_DIRECTORY/nft.fails");
        assert_eq!((snapshot(), switches()), (before, "0 0 0".to_owned()));
    });
}

#[test]
fn forwarding_that_was_on_stays_on() {
    in_namespace!(forwarding_that_was_on_stays_on, async {
        host();
        sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
        let config = gateway("wg0", &["10.9.0.0/24"], &["192.0.2.0/24"]);
        let applied = apply(&config).await.unwrap();
        applied.undo().await.unwrap();
        assert_eq!(switches(), "1 0 1");
    });
}

#[test]
fn single_interfaces_that_forwarded_before_still_do() {
    in_namespace!(single_interfaces_that_forwarded_before_still_do, async {
        host();
        tun("wg1");
        sh("cd /proc/sys/net; echo 1 > ipv4/conf/up0/forwarding; echo 1 > ipv6/conf/up0/forwarding");
        let single = || sh("cd /proc/sys/net; cat ipv4/conf/*/forwarding ipv6/conf/*/forwarding");
        let before = single();
        let networks = ["192.0.2.0/24", "2001:db8::/64"];
        let one = apply(&gateway("wg0", &["10.9.0.0/24", "fd09::/64"], &networks)).await.unwrap();
        let mut config = gateway("wg1", &["10.8.0.0/24", "fd08::/64"], &networks);
        config.addresses = nets(&["10.8.0.2/24"]);
        let two = apply(&config).await.unwrap();
        let on = single();
        one.undo().await.unwrap();
        assert_eq!(single(), on, "the second still needs it");
        two.undo().await.unwrap();
        assert_eq!(single(), before);
    });
}

#[test]
fn obstacles_to_networks_behind_the_host_are_found() {
    in_namespace!(obstacles_to_networks_behind_the_host_are_found, async {
        host();
        let networks = nets(&["192.0.2.0/24", "2001:db8::/64"]);
        let gateway = Gateway { pools: nets(&["10.9.0.0/24", "fd09::/64"]), networks };
        let texts = async |gateway: &Gateway, translated: bool| {
            let found = obstacles("wg0", gateway, translated).await.unwrap();
            found.iter().map(|obstacle| (obstacle.is_certain(), obstacle.to_string())).collect::<Vec<_>>()
        };
        let off = texts(&gateway, true).await;
        assert_eq!(off.len(), 2);
        assert!(off[0].0 && off[0].1.contains("sysctl -w net.ipv4.ip_forward=1"), "{off:?}");
        assert!(off[1].0 && off[1].1.contains("sysctl -w net.ipv6.conf.all.forwarding=1"), "{off:?}");
        sh("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
        assert_eq!(texts(&gateway, true).await, []);
        let no_way_back = texts(&gateway, false).await;
        assert!(no_way_back[0].1.contains("have a route to 10.9.0.0/24") && !no_way_back[0].0, "{no_way_back:?}");
        assert!(no_way_back[1].1.contains("have a route to fd09::/64"), "{no_way_back:?}");
        sh("nft add table inet fw; nft add chain inet fw gate '{ type filter hook forward priority 0; policy drop; }'");
        let dropped = texts(&gateway, true).await;
        assert!(dropped[0].1.contains("nft insert rule inet fw gate iifname wg0 accept"), "{dropped:?}");
        sh("nft insert rule inet fw gate iifname wg0 accept; nft insert rule inet fw gate oifname wg0 accept");
        assert_eq!(texts(&gateway, true).await, []);
        sh("ip route delete default");
        let default = Gateway { networks: nets(&["0.0.0.0/0"]), ..gateway.clone() };
        let unrouted = texts(&default, true).await;
        assert!(unrouted[0].0 && unrouted[0].1.contains("no route to 0.0.0.0/0"), "{unrouted:?}");
        assert!(texts(&default, false).await.iter().any(|(certain, text)| *certain && text.contains("the Internet")));
        assert_eq!(texts(&Gateway::default(), false).await, []);
    });
}
