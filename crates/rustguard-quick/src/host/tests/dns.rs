//! Name servers, with replacements for resolvconf and systemd-resolved.

use super::*;

#[test]
fn resolvconf_gets_what_wg_quick_gives_it() {
    in_namespace!(resolvconf_gets_what_wg_quick_gives_it, async {
        host();
        assert_eq!(name_service().await, NameService::Resolvconf);
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
            rustguard_skip::skipped("no dbus-daemon: apt install dbus");
            return;
        };
        assert_eq!(name_service().await, NameService::Resolved);
        let cases: [Case<'_>; 6] = [
            (&[], &["corp.example"], &[("corp.example", false)], true),
            (
                &["10.0.0.0/8"],
                &["~corp.example", "lab.example"],
                &[("corp.example", true), ("lab.example", false)],
                false,
            ),
            (&["10.0.0.0/8"], &["~."], &[(".", true)], true),
            (&["0.0.0.0/0"], &["corp.example"], &[("corp.example", false), (".", true)], true),
            (&["0.0.0.0/0"], &["~corp.example"], &[("corp.example", true), (".", true)], true),
            (&["0.0.0.0/1", "128.0.0.0/1"], &["~."], &[(".", true)], true),
        ];
        for (allowed_ips, search, told, others) in cases {
            let mut config = config("wg0", &["10.9.0.2/24"], allowed_ips);
            config.dns = vec!["10.9.0.1".parse().unwrap(), "fd09::1".parse().unwrap()];
            config.dns_search = search.iter().map(ToString::to_string).collect();
            let applied = apply(&config).await.unwrap();
            let index = link_index("wg0").await.unwrap().unwrap();
            applied.undo().await.unwrap();
            assert!(!directory().join("resolvconf.log").exists());
            let servers = [(2, vec![10, 9, 0, 1]), (10, vec![0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])];
            let expected = [
                format!("SetLinkDNS {:?}", (index, servers)),
                format!("SetLinkDomains {:?}", (index, told)),
                format!("SetLinkDefaultRoute {:?}", (index, others)),
                format!("RevertLink {index}"),
            ];
            assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), expected, "{allowed_ips:?} {search:?}");
        }
    });
}

#[test]
fn resolvconf_cannot_send_only_some_names() {
    in_namespace!(resolvconf_cannot_send_only_some_names, async {
        host();
        let mut config = config("wg0", &["10.9.0.2/24"], &["10.0.0.0/8"]);
        config.dns = vec!["10.9.0.1".parse().unwrap()];
        config.dns_search = vec!["~corp.example".into(), "example".into()];
        let error = apply(&config).await.unwrap_err().to_string();
        assert!(error.contains("`~corp.example`") && error.contains("systemd-resolved"), "{error}");
        let log = directory().join("resolvconf.log");
        assert!(!log.exists(), "resolvconf must not take over all names");
        // Here the servers answer all names, which resolvconf supports.
        config.allowed_ips = vec!["0.0.0.0/0".parse().unwrap()];
        apply(&config).await.unwrap().undo().await.unwrap();
        assert!(std::fs::read_to_string(&log).unwrap().contains("nameserver 10.9.0.1\nsearch example\n"));
    });
}

/// The allowed IPs, the domains of the file, the domains that resolved gets, and whether it asks for other names too.
type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, bool)], bool);

type Calls = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

/// A bus with a service that records the requests to resolved. The bus ends with the returned child.
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
    // The bus prints its address when it listens.
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
                "SetLinkDefaultRoute" => format!("{member} {:?}", body.deserialize::<(i32, bool)>().unwrap()),
                _ => format!("{member} {:?}", body.deserialize::<i32>().unwrap()),
            };
            noted.lock().unwrap().push(call);
            connection.reply(&header, &()).await.unwrap();
        }
    });
    Some((bus, calls))
}
