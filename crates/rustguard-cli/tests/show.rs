//! `show` with a device of another implementation: its output for scripts equals the output of `wg`, byte for byte.
//!
//! wireguard-go runs in namespaces of its own: processes, so that all of them end with the test, network, and mounts,
//! so that no other program uses its socket. `RUSTGUARD_WIREGUARD_GO` is its path if it is not in the PATH.

use std::{
    path::Path,
    process::{Command, Output},
};

/// Two devices, one with everything and one with nothing.
const SETUP: &str = r#"
set -eu
mount -t tmpfs tmpfs /run
mkdir /run/wireguard
for interface in wg-full wg-none; do
    LOG_LEVEL=error "$WIREGUARD_GO" -f "$interface" </dev/null >&2 &
done
for interface in wg-full wg-none; do
    tries=0
    # Until the socket listens (SO_ACCEPTCON): "wg" deletes one that is bound and does not answer yet.
    until grep -q "00010000.*/$interface.sock" /proc/net/unix; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || { echo "wireguard-go does not start" >&2; exit 9; }
        sleep 0.05
    done
done
umask 077
wg genkey >/run/key
wg genpsk >/run/psk
wg set wg-full private-key /run/key listen-port 51801 fwmark 0xca6c \
    peer xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg= preshared-key /run/psk endpoint 192.0.2.1:51820 \
        persistent-keepalive 25 allowed-ips 10.0.0.0/8,fd00::/8 \
    peer TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0= endpoint '[2001:db8::1]:5' allowed-ips ''
"#;

/// Runs a script after [`SETUP`]. `None` if this machine cannot.
fn script(script: &str) -> Option<Output> {
    let Some(wireguard_go) = wireguard_go() else {
        rustguard_skip::missing("no wireguard-go: go install golang.zx2c4.com/wireguard@latest");
        return None;
    };
    let namespaces = ["--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child"];
    let works = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !works(Command::new("unshare").args(namespaces).arg("true")) || !works(Command::new("wg").arg("--version")) {
        rustguard_skip::missing("no namespaces, or no wg: apt install wireguard-tools");
        return None;
    }
    let output = Command::new("timeout")
        .args(["60", "unshare"])
        .args(namespaces)
        .args(["sh", "-c", &format!("{SETUP}{script}")])
        .env("WIREGUARD_GO", wireguard_go)
        .env("RUSTGUARD", env!("CARGO_BIN_EXE_rustguard"))
        .env_remove("WG_HIDE_KEYS")
        .env_remove("WG_COLOR_MODE")
        .output()
        .unwrap();
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{text}", output.status);
    Some(output)
}

/// The path of the program, under its project's name or the name that `go install` gives it.
fn wireguard_go() -> Option<String> {
    let named = std::env::var("RUSTGUARD_WIREGUARD_GO").ok();
    let home = std::env::var("HOME").unwrap_or_default();
    let path = std::env::var("PATH").unwrap_or_default();
    let directories = path.split(':').map(str::to_owned).chain([format!("{home}/go/bin")]);
    let candidates =
        directories.flat_map(|directory| ["wireguard-go", "wireguard"].map(|name| format!("{directory}/{name}")));
    named.into_iter().chain(candidates).find(|path| Path::new(path).is_file())
}

#[test]
fn fields_are_those_of_wg() {
    // wireguard-go reports peers in no fixed order, so lines are sorted.
    script(
        r#"
for interface in wg-full wg-none all; do
    for field in public-key private-key listen-port fwmark peers preshared-keys endpoints allowed-ips latest-handshakes \
        transfer persistent-keepalive dump; do
        # wg names the interface once, not in each line, in this one case.
        [ "$interface $field" != "all endpoints" ] || continue
        expected=$(wg show "$interface" "$field" | sort)
        actual=$("$RUSTGUARD" show "$interface" "$field" | sort)
        [ "$actual" = "$expected" ] || { printf '%s %s: wg says\n%s\nand we say\n%s\n' "$interface" "$field" "$expected" "$actual"; exit 1; }
    done
done
expected=$(wg show interfaces | tr ' ' '\n' | sort)
[ "$("$RUSTGUARD" show interfaces | tr ' ' '\n' | sort)" = "$expected" ]
"#,
    );
}

#[test]
fn for_people_without_secrets() {
    let Some(output) = script(
        r#""$RUSTGUARD" show; echo =====; WG_HIDE_KEYS=never "$RUSTGUARD" show wg-full; echo =====; cat /run/key /run/psk"#,
    ) else {
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let [hidden, shown, secrets] = text.split("=====\n").collect::<Vec<_>>()[..] else { panic!("{text}") };
    for line in [
        "interface: wg-full",
        "  private key: (hidden)",
        "  listening port: 51801",
        "  fwmark: 0xca6c",
        "peer: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=",
        "  preshared key: (hidden)",
        "  endpoint: 192.0.2.1:51820",
        "  persistent keepalive: every 25 seconds",
        "  allowed ips: (none)",
        "interface: wg-none",
        "  private key: (none)",
    ] {
        assert!(hidden.lines().any(|printed| printed == line), "{line}:\n{hidden}");
    }
    for secret in secrets.lines() {
        assert!(!hidden.contains(secret) && shown.contains(secret), "{text}");
    }
}

#[test]
fn for_programs() {
    // A killed tunnel leaves its socket behind, and is not shown.
    let Some(output) = script(
        r#"
"$WIREGUARD_GO" -f wg-dead </dev/null >&2 &
until wg show wg-dead >/dev/null 2>&1; do sleep 0.05; done
kill -KILL $!
wait $! || true
[ -S /run/wireguard/wg-dead.sock ]
"$RUSTGUARD" show --json
"#,
    ) else {
        return;
    };
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json[0]["interface"], &json[1]["interface"]), (&"wg-full".into(), &"wg-none".into()));
    assert_eq!((json.as_array().unwrap().len(), &json[0]["listen_port"]), (2, &51_801.into()));
    assert!(json[0].get("private_key").is_none() && json[1]["public_key"].is_null());
    let peers = json[0]["peers"].as_array().unwrap();
    let peer = peers.iter().find(|peer| peer["endpoint"] == "192.0.2.1:51820").unwrap();
    assert_eq!(peer["persistent_keepalive"], 25);
    assert_eq!(peer["allowed_ips"].as_array().unwrap().len(), 2);
    assert!(peer["latest_handshake"].is_null() && peer.get("preshared_key").is_none());
}

#[test]
fn what_is_not_there() {
    for name in ["rg-no-such", "no/name"] {
        let output = Command::new(env!("CARGO_BIN_EXE_rustguard")).args(["show", name]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(text.starts_with(&format!("rustguard: cannot show {name}: ")) && text.lines().count() == 1, "{text}");
    }
}
