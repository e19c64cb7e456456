//! Set-ups that fail, and the state that a killed process leaves.

use super::*;

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

        // Another program's route is found after addresses, link, DNS and another route were set up. It stays.
        let error = apply(&config).await.unwrap_err();
        assert!(matches!(error, HostError::RouteExists { table: 254, .. }), "{error}");
        assert_eq!(snapshot(), before);
        let log = std::fs::read_to_string(directory().join("resolvconf.log")).unwrap();
        assert!(log.ends_with("resolvconf -d wg0 -f\n"), "{log}");

        // Now the last step fails.
        sh("ip route del 10.20.0.0/16 dev up0");
        let before = snapshot();
        std::fs::write(directory().join("nft.fails"), "").unwrap();
        let error = apply(&config).await.unwrap_err();
        assert!(error.to_string().contains("no nf_tables here"), "{error}");
        std::fs::remove_file(directory().join("nft.fails")).unwrap();
        assert_eq!(snapshot(), before);
        // Undoing the guard failed as well. The record stays, and the next process undoes the rest.
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
        again
            .args(["--exact", "host::tests::failures::what_a_killed_process_left_is_cleaned_up"])
            .env(INSIDE, "victim");
        assert_eq!(again.stdout(Stdio::null()).status().unwrap().signal(), Some(9));

        let record: Record = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let kinds = |wanted: fn(&Step) -> bool| record.steps.iter().filter(|step| wanted(step)).count();
        assert_eq!(kinds(|step| matches!(step, Step::Dns(_))), 1);
        assert_eq!(kinds(|step| matches!(step, Step::Rule(_))), 4);
        assert_eq!(kinds(|step| matches!(step, Step::Guard { v4: true, v6: true })), 1);
        assert_eq!(record.steps.len(), 6, "what vanishes with the interface needs no record");
        // With a real tunnel the kernel does this: a tun interface is deleted when its process ends.
        sh("ip link del wg0");
        assert_eq!(sh("ip rule | wc -l; nft list tables | wc -l"), "5\n2");

        // `up` again: the new set-up first removes the old one, and gets the same numbers.
        tun("wg0");
        let again = apply(&config).await.unwrap();
        assert_eq!(again.fwmark(), Some(51820));
        assert_eq!(sh("ip rule | wc -l; nft list tables | wc -l"), "5\n2");
        let log = std::fs::read_to_string(directory().join("resolvconf.log")).unwrap();
        assert_eq!(log.matches("resolvconf -d wg0 -f").count(), 1);

        // Or `down`, after the interface was deleted.
        drop(again);
        sh("ip link del wg0");
        assert!(cleanup(&path).await.unwrap());
        tun("wg0");
        assert_eq!(snapshot(), before);
        assert!(!cleanup(&path).await.unwrap());

        // The process was killed after it recorded a step and before it made the change: there is nothing to undo, and
        // no error.
        std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        assert!(cleanup(&path).await.unwrap());
        assert_eq!(snapshot(), before);

        // Changes in another namespace are not undone here.
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
        // This interface name is not a valid nft identifier.
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
            .args(["--exact", "host::tests::failures::without_privilege_the_error_says_what_to_do"])
            .env(INSIDE, "unprivileged")
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    });
}
