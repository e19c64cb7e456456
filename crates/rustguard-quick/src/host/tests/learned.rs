//! The routes that a routing engine learns, in the kernel's tables.

use super::*;
use rustguard_device::kernel::{KernelRoutes, LearnedTables, Redistribute};

/// wg0 with Babel. Both default routes may be learned.
async fn prepared() -> (HostConfig, Applied, LearnedRoutes) {
    host();
    let mut config = full_tunnel("wg0");
    config.learned = true;
    config.allowed_ips.extend(nets(&["10.20.0.0/16", "fd20::/48"]));
    config.fwmark = choose_fwmark(&config).await.unwrap();
    assert_eq!(config.fwmark, Some(51820));
    let applied = apply(&config).await.unwrap();
    assert_eq!(applied.warnings(), []);
    let index = link_index("wg0").await.unwrap().unwrap();
    let learned = LearnedRoutes::start(index, config.learned_tables().unwrap()).unwrap();
    (config, applied, learned)
}

/// Waits until the command succeeds.
async fn until(command: &str) {
    while !Command::new("sh").args(["-ec", command]).output().unwrap().status.success() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

const FAR: [(&str, &str); 2] = [("0.0.0.0/0", "203.0.113.9"), ("::/0", "2001:db8:9::9")];

#[test]
fn a_default_route_that_may_be_learned_is_prepared_for() {
    in_namespace!(a_default_route_that_may_be_learned_is_prepared_for, async {
        let (config, applied, learned) = prepared().await;
        let quiet = snapshot();
        assert!(quiet.contains("not from all fwmark 0xca6c lookup 51820"), "{quiet}");
        assert!(!quiet.contains("10.20.0.0") && !quiet.contains("fd20::"), "bounds became routes: {quiet}");
        assert!(!quiet.contains("table ip rustguard-wg0"), "a guard with nothing learned: {quiet}");
        for (_, address) in FAR {
            assert_eq!(leaves_through(address, 0), "up0");
        }

        for (default, address) in FAR {
            learned.set(net(default), true);
            until(&format!("ip route get {address} | grep wg0")).await;
            assert_eq!(leaves_through(address, 51820), "up0");
        }
        until("nft list tables | grep 'ip rustguard-wg0'; nft list tables | grep 'ip6 rustguard-wg0'").await;
        assert_eq!(sh("ip route show table 51820 | cut -d ' ' -f 1-5"), "default dev wg0 proto babel");
        // Each family has its own guard.
        learned.set(net("0.0.0.0/0"), false);
        until("! nft list tables | grep 'ip rustguard-wg0'").await;
        assert_eq!((&*leaves_through(FAR[0].1, 0), &*leaves_through(FAR[1].1, 0)), ("up0", "wg0"));
        assert!(sh("nft list tables").contains("ip6 rustguard-wg0"));
        learned.set(net("::/0"), false);
        until("! nft list tables | grep rustguard").await;
        assert_eq!(snapshot(), quiet);

        // The state after SIGKILL: the guard is in the record, although it was added much later.
        learned.set(net("0.0.0.0/0"), true);
        until("nft list tables | grep rustguard").await;
        drop((learned, applied));
        sh("ip link del wg0");
        assert!(cleanup(&config.record.unwrap()).await.unwrap());
        assert!(!sh("nft list tables; ip rule; ip -6 rule").contains("rustguard"));
        assert_eq!(sh("ip rule | wc -l; ip -6 rule | wc -l"), "3\n2");
    });
}

#[test]
fn a_default_route_that_was_not_foreseen_stays_out() {
    in_namespace!(a_default_route_that_was_not_foreseen_stays_out, async {
        host();
        let mut config = config("wg0", &["10.9.0.2/24"], &["10.20.0.0/16", "0.0.0.0/0"]);
        config.learned = true;
        config.fwmark = choose_fwmark(&config).await.unwrap();
        let applied = apply(&config).await.unwrap();
        let index = link_index("wg0").await.unwrap().unwrap();
        let learned = LearnedRoutes::start(index, config.learned_tables().unwrap()).unwrap();
        for prefix in ["::/0", "fd20::/48"] {
            learned.set(net(prefix), true);
        }
        until("ip -6 route | grep fd20::").await;
        assert_eq!(leaves_through(FAR[1].1, 0), "up0");
        drop(learned);
        applied.undo().await.unwrap();

        // Without a default route in the allowed IPs, nothing is prepared.
        config.allowed_ips = nets(&["10.20.0.0/16"]);
        config.fwmark = None;
        assert_eq!(choose_fwmark(&config).await.unwrap(), None);
        let tables = config.learned_tables();
        assert_eq!(format!("{tables:?}"), format!("{:?}", Some(LearnedTables::main())));
        config.table = Table::Off;
        assert!(config.learned_tables().is_none());
    });
}

#[test]
fn a_table_of_ones_own_takes_learned_default_routes_too() {
    in_namespace!(a_table_of_ones_own_takes_learned_default_routes_too, async {
        host();
        let mut config = full_tunnel("wg0");
        config.learned = true;
        config.table = Table::Number(1234);
        assert_eq!(choose_fwmark(&config).await.unwrap(), None);
        let applied = apply(&config).await.unwrap();
        let index = link_index("wg0").await.unwrap().unwrap();
        let learned = LearnedRoutes::start(index, config.learned_tables().unwrap()).unwrap();
        for prefix in ["0.0.0.0/0", "10.20.0.0/16"] {
            learned.set(net(prefix), true);
        }
        until("ip route show table 1234 | grep ^10.20").await;
        assert_eq!(sh("ip route show table 1234 | cut -d ' ' -f 1"), "default\n10.20.0.0/16");
        assert_eq!(sh("ip rule | wc -l; nft list tables | wc -l"), "3\n0");
        drop(learned);
        applied.undo().await.unwrap();
    });
}

/// The kernel's routes, each time the table changed.
#[test]
fn the_kernels_routes_are_followed() {
    in_namespace!(the_kernels_routes_are_followed, async {
        host();
        let index = link_index("wg0").await.unwrap().unwrap();
        let (sender, mut found) = tokio::sync::mpsc::channel(1);
        let which = vec![Redistribute::Within(net("10.64.0.0/10")), Redistribute::Default];
        let routes = KernelRoutes::start(index, which, sender).unwrap();
        let set = |list: &[&str]| nets(list).into_iter().collect::<std::collections::BTreeSet<_>>();
        let defaults = set(&["0.0.0.0/0", "::/0"]);
        routes.look_again();
        assert_eq!(found.recv().await.unwrap(), defaults);

        // Routes that the configuration does not name are not reported.
        sh("ip link set wg0 up; ip route add 10.20.0.0/16 dev up0; ip route add 10.64.0.0/16 dev wg0
            ip route add 10.65.0.0/16 dev up0 proto babel; ip route add 10.66.0.0/16 dev up0 table 7");
        routes.look_again();
        sh("ip route add 10.67.0.0/16 dev up0; ip route del default");
        routes.look_again();
        assert_eq!(found.recv().await.unwrap(), set(&["10.67.0.0/16", "::/0"]));
        // The kernel does not announce that this route is gone.
        sh("ip link set up0 down");
        routes.look_again();
        assert_eq!(found.recv().await.unwrap(), set(&[]));

        sh("ip link set up0 up
            for n in $(seq 0 255); do for m in $(seq 0 19); do
                echo route add 10.100.$n.$m/32 dev up0; done; done > $RUSTGUARD_TEST_DIRECTORY/batch
            ip -batch $RUSTGUARD_TEST_DIRECTORY/batch");
        let started = std::time::Instant::now();
        routes.look_again();
        assert_eq!(found.recv().await.unwrap().len(), 4_096, "of 5,120");
        writeln!(std::io::stderr(), "5,120 routes looked at in {:?} at most", started.elapsed()).unwrap();
    });
}
