//! The state of the host while a tunnel is up, and afterwards.

use super::*;

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
        // The address's own network covers 10.9.0.7, and 10.20.3.4/24 is the same prefix as 10.20.3.0/24.
        let routes = sh("ip route show dev wg0 | awk '{print $1, $2, $3}'");
        assert_eq!(
            routes,
            "0.0.0.0/1 scope link\n10.9.0.0/24 proto kernel\n10.20.0.0/16 scope link\n10.20.3.0/24 scope link"
        );
        assert!(sh("ip -6 route show dev wg0").contains("fd20::/48"));
        assert_eq!(applied.fwmark(), None);
        assert_eq!(leaves_through("10.20.3.1", 0), "wg0");
        // None of these changes outlives the interface, so there is no record.
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

/// wg-quick itself, on the same host with a replacement for `wg`, makes the same addresses, routes, rules and nft
/// rules.
#[test]
fn the_result_is_that_of_wg_quick() {
    in_namespace!(the_result_is_that_of_wg_quick, async {
        let Some(original) = find_program("wg-quick") else {
            rustguard_skip::missing("no wg-quick: apt install wireguard-tools");
            return;
        };
        host();
        sh("ip link del wg0");
        let directory = directory();
        // wg-quick first looks for programs in its own folder.
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
            // Without a reachable endpoint, the default route counts.
            (&["203.0.113.9:1"], 1320),
            (&[], 1320),
        ] {
            config.endpoints = endpoints(list);
            assert_eq!(tunnel_mtu(&config).await.unwrap(), expected, "{list:?}");
        }

        // Through a peer, both layers of WireGuard have to fit.
        config.through_peers = true;
        for (list, expected) in
            [(&["192.0.2.9:1"][..], 1264), (&["198.51.100.9:1"], 1152), (&["127.0.0.1:1"], 1360), (&[], 1264)]
        {
            config.endpoints = endpoints(list);
            assert_eq!(tunnel_mtu(&config).await.unwrap(), expected, "{list:?}");
        }
        config.through_peers = false;

        // An interface whose MTU is below the minimum of IPv6 at the start.
        sh("ip link set wg0 mtu 1000");
        let mut small = config.clone();
        small.addresses = nets(&["fd09::2/64"]);
        apply(&small).await.unwrap().undo().await.unwrap();

        // IPv6 inside the tunnel needs 1,280 bytes for any MTU of the path. A smaller configured MTU is an error.
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
        // The second tunnel has no IPv6, so the first one carries all IPv6 packets except its own.
        assert_eq!([0, 51821, 51820].map(|mark| leaves_through("2001:db8:9::9", mark)), ["wg0", "wg0", "up0"]);
        assert_eq!(leaves_through("192.0.2.7", 0), "up0");

        // There is no loop, in any order in which the tunnels stop and start.
        first.undo().await.unwrap();
        assert_eq!(paths(), ["wg1", "up0", "up0"], "{}", sh("ip rule"));
        let first = apply(&full_tunnel("wg0")).await.unwrap();
        // A rule of the second tunnel still has 51820, so the first one gets another mark. It is now routed through the
        // second.
        assert_eq!(first.fwmark(), Some(51822));
        assert_eq!(
            [0, 51822, 51821].map(|mark| leaves_through("203.0.113.9", mark)),
            ["wg0", "wg1", "up0"],
            "{}",
            sh("ip rule")
        );

        // The same configured mark means the same table. This is refused, and the other tunnels' settings do not
        // change.
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
