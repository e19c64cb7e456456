//! A roster, an exchange and the key of a pair, byte by byte, for other implementations: `tests/vectors`.
//! `docs/roster.md` describes them.
//!
//! `RUSTGUARD_WRITE_VECTORS=1` writes them anew.
use rustguard_core::time::Instant;
use rustguard_crypto::x25519::PublicKey;
use rustguard_roster::{
    exchange::{Exchange, Output},
    key::NetworkSecret,
    member::{Member, Role},
    pair::PairSecret,
    roster::Roster,
    settings::Settings,
};
use std::{env, fmt::Write as _, fs, net::IpAddr, path::Path, sync::Arc};

/// Compares the text with the file, or writes it.
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
    if env::var_os("RUSTGUARD_WRITE_VECTORS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, expected, "{name}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn secret() -> NetworkSecret {
    NetworkSecret::from_bytes(&[9; 32])
}

fn pairs() -> PairSecret {
    PairSecret::from_bytes(&[5; 32])
}

fn key(byte: u8) -> PublicKey {
    PublicKey([byte; 32])
}

/// Twelve members, so that there are two shards: each kind of member, and each field.
fn roster() -> Roster {
    let mut settings = Settings::new("rg0".parse().unwrap());
    settings.mtu = Some(1_360);
    settings.pools = vec!["10.150.0.0/24".parse().unwrap(), "fd15::/64".parse().unwrap()];
    settings.name_servers = vec![[10, 150, 0, 1].into()];
    settings.domains = vec!["corp.example".into()];
    settings.keepalive = Some(25);
    settings.pair_secret = Some(pairs().id());
    let members = (1..=12).map(|byte| {
        let addresses: [IpAddr; 2] = [[10, 150, 0, byte].into(), [0xfd15, 0, 0, 0, 0, 0, 0, u16::from(byte)].into()];
        let mut member = Member::new(key(byte), format!("member-{byte}").parse().unwrap()).with_addresses(addresses);
        match byte {
            1 => {
                let endpoints = ["203.0.113.1:51820".parse().unwrap(), "hub.example:51820".parse().unwrap()];
                member = member.with_role(Role::Server).with_endpoints(endpoints);
            }
            2 => member = member.with_role(Role::Client(key(1))),
            3 => member.tags = vec!["laptops".parse().unwrap()],
            4 => member = member.with_prefixes(["192.168.1.0/24".parse().unwrap()]).with_old_key(key(104)),
            _ => {}
        }
        Arc::new(member)
    });
    Roster::issue(&secret(), 7, 1_800_000_000, settings, members).unwrap()
}

#[test]
fn a_roster() {
    let roster = roster();
    let file = roster.to_bytes();
    let mut text = String::new();
    let mut line = |name: &str, bytes: &[u8]| writeln!(text, "{name} {}", hex(bytes)).unwrap();
    line("seed", secret().as_bytes());
    line("network", &secret().public_key().0);
    let mut rest = &file[4..];
    for name in ["head", "settings", "shard", "shard"] {
        let (len, behind) = rest.split_first_chunk().unwrap();
        let (part, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
        line(name, part);
        rest = behind;
    }
    assert!(rest.is_empty());
    line("number", &roster.version().number.to_le_bytes());
    line("digest", &roster.version().digest);
    line("file", &file);
    check("roster", &text);
    assert!(Roster::from_bytes(&file, &secret().public_key()).is_some());
}

/// If a server has lost the preshared key of a member, the member's record says so.
#[test]
fn a_member_without_a_preshared_key() {
    let server = Member::new(key(1), "server".parse().unwrap()).with_role(Role::Server);
    let member = Member::new(key(2), "late".parse().unwrap()).with_addresses([IpAddr::from([10, 150, 0, 2])]);
    let members = [server, member.with_no_psk(key(1))].map(Arc::new);
    let settings = Settings::new("rg0".parse().unwrap());
    let file = Roster::issue(&secret(), 8, 1_800_000_000, settings, members).unwrap().to_bytes();
    let network = secret().public_key();
    check("without_psk", &format!("network {}\nfile {}\n", hex(&network.0), hex(&file)));
    let read = Roster::from_bytes(&file, &network).unwrap();
    let lost = [1, 2].map(|byte| read.member(&key(byte)).unwrap().without_psk());
    assert_eq!(lost, [None, Some(key(1))]);
}

#[test]
fn a_key_of_a_pair() {
    let (pairs, low, high) = (pairs(), key(3), key(4));
    let psk = pairs.preshared_key(&high, &low);
    let lines = [("secret", &pairs.as_bytes()[..]), ("low", &low.0), ("high", &high.0), ("key", psk.as_bytes())];
    check("pair", &lines.map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).concat());
}

/// Member 3 has no roster. It gets the server's roster, and the key that it shares with member 4. Nothing is lost, and
/// no time passes.
#[test]
fn an_exchange() {
    let mut server = Exchange::new(secret().public_key(), Some(roster())).with_pair_secret(pairs());
    let mut member = Exchange::new(secret().public_key(), None);
    let (now, mut text) = (Instant::from_nanos(1_000_000_000), String::new());
    let keys = [key(1), key(3)];
    server.connected(&keys[1], now);
    member.connected(&keys[0], now);
    for turn in 0..200 {
        let (name, from, to, sender) = match turn % 2 {
            0 => ("server", &mut server, &mut member, keys[0]),
            _ => ("member", &mut member, &mut server, keys[1]),
        };
        while let Some(output) = from.next_output() {
            match output {
                Output::Send { text: message, .. } => {
                    writeln!(text, "{name} {}", hex(&message)).unwrap();
                    to.hear(&sender, &message, now);
                }
                Output::Newer => {
                    writeln!(text, "# the member has the roster").unwrap();
                    from.want_keys([key(4)], now);
                }
                Output::PresharedKey { .. } => writeln!(text, "# the member has the key").unwrap(),
                _ => {}
            }
        }
    }
    assert!(text.ends_with("# the member has the key\n"));
    check("exchange", &text);
    assert_eq!(member.roster().map(|roster| roster.version()), Some(roster().version()));
}

/// The same exchange as in the first version, where nothing came unasked. The server and the member of that version
/// still work with the present ones.
#[test]
fn an_exchange_with_an_earlier_version_on_either_side() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/exchange_asked");
    let file = fs::read_to_string(file).unwrap();
    let lines: Vec<_> = file.lines().filter_map(|line| line.split_once(' ')).filter(|(who, _)| *who != "#").collect();
    let bytes = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    let now = Instant::from_nanos(1_000_000_000);
    for (role, other) in [("server", key(3)), ("member", key(1))] {
        let mut own = match role {
            "server" => Exchange::new(secret().public_key(), Some(roster())).with_pair_secret(pairs()),
            _ => Exchange::new(secret().public_key(), None),
        };
        own.connected(&other, now);
        let (mut said, mut told) = (Vec::new(), 0);
        for (who, text) in &lines {
            if *who != role {
                own.hear(&other, &bytes(text), now);
            }
            while let Some(output) = own.next_output() {
                match output {
                    Output::Send { text, .. } => said.push(hex(&text)),
                    Output::Newer => own.want_keys([key(4)], now),
                    Output::PresharedKey { .. } => told += 1,
                    _ => {}
                }
            }
        }
        let lacking = lines.iter().filter(|(who, text)| *who == role && !said.iter().any(|said| said == text));
        assert_eq!(lacking.count(), 0, "the {role} says all that it said");
        assert_eq!(own.roster().map(|roster| roster.version()), Some(roster().version()));
        assert_eq!(told, usize::from(role == "member"));
    }
}
