//! The words of `wg set`, and RustGuard's own: a change to a running tunnel.

use super::{spelling::is_name, value};
use ipnet::IpNet;
use rustguard_crypto::x25519::{PublicKey, StaticSecret};
use rustguard_device::{AllowedIpChange, Change, EndpointSpec, PeerUpdate, PresharedKey, Update};
use std::{io, path::Path};
use zeroize::Zeroizing;

/// The words for the interface itself.
const INTERFACE_WORDS: [&str; 4] = ["listen-port", "private-key", "fwmark", "forward"];

/// The words for a peer.
const PEER_WORDS: [&str; 9] =
    ["remove", "preshared-key", "endpoint", "persistent-keepalive", "allowed-ips", "name", "direct", "parity", "role"];

/// The context in which words are parsed.
pub trait WordContext {
    /// The public key of the peer with this name, if exactly one has it.
    ///
    /// # Errors
    /// A message with the reason and a remedy.
    fn peer_named(&self, name: &str) -> Result<PublicKey, String>;

    /// The contents of a file with a key.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read_key(&self, path: &Path) -> io::Result<Zeroizing<String>>;
}

/// Parses the words after `wg set INTERFACE`. There are extensions to `wg`: a peer may be given by its name, `remove
/// PEER` is short for `peer PEER remove`, `endpoint` takes several endpoints separated by commas, also through a peer,
/// a peer has `name`, `direct`, `parity` and `role`, and the interface has `forward`.
///
/// # Errors
/// One line that names the word and the remedy. It does not contain keys.
pub fn parse_words(words: &[String], context: &impl WordContext) -> Result<Update, String> {
    let mut update = Update::new();
    let mut words = words.iter().map(String::as_str);
    // Whether the last `peer` can have more words.
    let mut open = false;
    while let Some(word) = words.next() {
        if word == "remove" && open {
            update.peers.last_mut().expect("`peer` added one").remove = true;
            open = false;
            continue;
        }
        let what = || format!("`{word}` needs a value behind it");
        let peer = update.peers.last_mut().filter(|_| open);
        match (word, peer) {
            ("peer" | "remove", _) => {
                let mut peer = PeerUpdate::new(public_key(words.next().ok_or_else(what)?, context)?);
                peer.remove = word == "remove";
                open = !peer.remove;
                update.peers.push(peer);
            }
            ("listen-port", None) => {
                let port = value::number(words.next().ok_or_else(what)?, 0..=65_535);
                update.listen_port = Some(port.map_err(|problem| said(word, problem))?);
            }
            ("fwmark", None) => {
                update.fwmark =
                    Some(value::fwmark(words.next().ok_or_else(what)?).map_err(|problem| said(word, problem))?);
            }
            ("forward", None) => {
                let forward = value::switch(words.next().ok_or_else(what)?);
                update.forward = Some(forward.map_err(|problem| said(word, problem))?);
            }
            ("private-key", None) => {
                let key = key(word, words.next().ok_or_else(what)?, context)?;
                update.private_key = Change::set_or_remove(key.map(|key| StaticSecret::from_bytes(*key)));
            }
            ("preshared-key", Some(peer)) => {
                let key = key(word, words.next().ok_or_else(what)?, context)?;
                peer.preshared_key = Change::set_or_remove(key.map(|key| PresharedKey::from_bytes(&key)));
            }
            ("endpoint", Some(peer)) => {
                let paths = words
                    .next()
                    .ok_or_else(what)?
                    .split(',')
                    .map(|path| value::path(path, |name| relay(name, context)));
                peer.endpoints = paths.collect::<Result<_, _>>().map_err(|problem| said(word, problem))?;
                let itself = EndpointSpec::Peer(peer.public_key);
                if peer.endpoints.iter().any(|path| path.endpoint == itself) {
                    return Err(
                        "endpoint leads to the peer through the peer itself: name another peer behind `via-peer`"
                            .to_owned(),
                    );
                }
            }
            ("direct", Some(peer)) => {
                let direct = value::switch(words.next().ok_or_else(what)?);
                peer.direct = Some(direct.map_err(|problem| said(word, problem))?);
            }
            ("parity", Some(peer)) => {
                let size = value::parity(words.next().ok_or_else(what)?);
                peer.parity = Change::set_or_remove(size.map_err(|problem| said(word, problem))?);
            }
            ("persistent-keepalive", Some(peer)) => {
                let interval = value::keepalive(words.next().ok_or_else(what)?);
                peer.persistent_keepalive = Change::set_or_remove(interval.map_err(|problem| said(word, problem))?);
            }
            ("allowed-ips", Some(peer)) => allowed_ips(peer, words.next().ok_or_else(what)?)?,
            ("name", Some(peer)) => {
                let name = words.next().ok_or_else(what)?;
                if !is_name(name) {
                    return Err("a peer's name has up to 63 letters, digits, blanks and -_.@+:/()'".to_owned());
                }
                peer.name = Some(name.to_owned());
            }
            ("role", Some(peer)) => {
                peer.role = Some(value::role(words.next().ok_or_else(what)?).map_err(|problem| said(word, problem))?);
            }
            (word, Some(_)) if INTERFACE_WORDS.contains(&word) => {
                return Err(format!("`{word}` is a word for the interface, and comes before the first `peer`"));
            }
            (word, None) if PEER_WORDS.contains(&word) => {
                return Err(format!("`{word}` is a word for a peer: peer PUBLICKEY {word} …"));
            }
            // The word may be a key in the wrong place.
            (word, _) if word.len() >= 32 => return Err("a word of this length has no place here".to_owned()),
            (word, Some(_)) => {
                return Err(format!("there is no `{word}`; the words for a peer are {}", PEER_WORDS.join(", ")));
            }
            (word, None) => {
                let words = INTERFACE_WORDS.join(", ");
                return Err(format!("there is no `{word}`; the words for the interface are {words}, peer and remove"));
            }
        }
    }
    Ok(update)
}

fn said(word: &str, problem: value::Problem) -> String {
    let help = problem.help.map(|help| format!("; {help}")).unwrap_or_default();
    format!("{word} {}{help}", problem.message)
}

fn public_key(word: &str, context: &impl WordContext) -> Result<PublicKey, String> {
    match value::key(word) {
        Ok(key) => Ok(PublicKey(*key)),
        // 44 characters are a key with a mistake, rather than a name.
        Err(problem) if word.len() == 44 => Err(said("peer", problem)),
        Err(_) => context.peer_named(word),
    }
}

fn relay(name: &str, context: &impl WordContext) -> Result<PublicKey, value::Problem> {
    context.peer_named(name).map_err(|reason| value::Problem::new(format!("leads through a peer: {reason}")))
}

/// The key in a file. As with `wg`, an empty file removes the key.
fn key(word: &str, path: &str, context: &impl WordContext) -> Result<Option<Zeroizing<[u8; 32]>>, String> {
    if value::key(path).is_ok() {
        return Err(format!(
            "{word} takes a file with the key, because others can see this command line; /dev/stdin is a file too"
        ));
    }
    let text = context.read_key(Path::new(path)).map_err(|error| format!("{word} {path}: {error}"))?;
    match text.trim() {
        "" => Ok(None),
        text => value::key(text)
            .map(|key| Some(key).filter(|key| **key != [0; 32]))
            .map_err(|problem| said(&format!("{word} {path}: the key"), problem)),
    }
}

/// `10.0.0.0/8,fd00::/8` in place of all; `+10.0.0.0/8,-fd00::/8` as changes; the empty word for none.
fn allowed_ips(peer: &mut PeerUpdate, word: &str) -> Result<(), String> {
    peer.replace_allowed_ips |= word.is_empty();
    for item in word.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (change, net): (fn(IpNet) -> AllowedIpChange, _) = match item.as_bytes()[0] {
            b'+' => (AllowedIpChange::Add, &item[1..]),
            b'-' => (AllowedIpChange::Remove, &item[1..]),
            _ => {
                peer.replace_allowed_ips = true;
                (AllowedIpChange::Add, item)
            }
        };
        let net = value::net(net).map_err(|problem| said("allowed-ips", problem))?;
        peer.allowed_ips.push(change(net.trunc()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_device::key::to_base64;
    use std::time::Duration;

    const KEY: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
    const SECRET: &str = "YAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

    /// One peer called `head office`, and files called `key`, `empty` and `broken`.
    struct Lab;

    impl WordContext for Lab {
        fn peer_named(&self, name: &str) -> Result<PublicKey, String> {
            if name == "head office" { Ok(PublicKey([7; 32])) } else { Err(format!("no peer `{name}`")) }
        }

        fn read_key(&self, path: &Path) -> io::Result<Zeroizing<String>> {
            Ok(Zeroizing::new(match path.to_str() {
                Some("key") => format!("{SECRET}\n"),
                Some("empty") => String::new(),
                Some("broken") => SECRET[1..].to_owned(),
                _ => return Err(io::ErrorKind::NotFound.into()),
            }))
        }
    }

    fn update(words: &[&str]) -> Result<Update, String> {
        parse_words(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), &Lab)
    }

    #[test]
    fn all_words_of_wg_set() {
        let update = update(&[
            "listen-port",
            "51820",
            "private-key",
            "key",
            "fwmark",
            "0xca6c",
            "peer",
            KEY,
            "preshared-key",
            "key",
            "endpoint",
            "vpn.example.org:7",
            "persistent-keepalive",
            "25",
            "allowed-ips",
            "10.0.0.5/8,fd00::/64",
            "peer",
            "head office",
            "remove",
            "remove",
            KEY,
        ])
        .unwrap();
        assert_eq!((update.listen_port, update.fwmark), (Some(51_820), Some(0xca6c)));
        assert!(matches!(&update.private_key, Change::Set(key) if *to_base64(&key.to_bytes()) == SECRET));
        let [peer, named, short] = &update.peers[..] else { panic!("three peers") };
        assert_eq!(*to_base64(&peer.public_key.0), KEY);
        assert!(matches!(&peer.preshared_key, Change::Set(key) if *to_base64(key.as_bytes()) == SECRET));
        assert_eq!(peer.endpoints, [EndpointSpec::Name("vpn.example.org".into(), 7).into()]);
        assert_eq!(peer.persistent_keepalive, Change::Set(Duration::from_secs(25)));
        let nets = ["10.0.0.0/8", "fd00::/64"].map(|net| AllowedIpChange::Add(net.parse().unwrap()));
        assert!(peer.replace_allowed_ips && peer.allowed_ips == nets && !peer.remove);
        assert!(
            named.public_key == PublicKey([7; 32])
                && named.remove
                && short.public_key == peer.public_key
                && short.remove
        );
    }

    #[test]
    fn what_takes_things_away() {
        let update = update(&[
            "private-key",
            "empty",
            "fwmark",
            "off",
            "peer",
            KEY,
            "preshared-key",
            "empty",
            "persistent-keepalive",
            "off",
            "allowed-ips",
            "",
        ])
        .unwrap();
        assert!(matches!(update.private_key, Change::Remove) && update.fwmark == Some(0));
        let peer = &update.peers[0];
        assert!(matches!(peer.preshared_key, Change::Remove) && peer.persistent_keepalive == Change::Remove);
        assert!(peer.replace_allowed_ips && peer.allowed_ips.is_empty());
    }

    #[test]
    fn plus_and_minus_change_and_the_rest_replaces() {
        let changes = |word| update(&["peer", KEY, "allowed-ips", word]).unwrap().peers.remove(0);
        let net = |net: &str| net.parse().unwrap();
        let peer = changes("+10.0.0.0/8,-10.1.0.0/16");
        assert!(!peer.replace_allowed_ips);
        assert_eq!(
            peer.allowed_ips,
            [AllowedIpChange::Add(net("10.0.0.0/8")), AllowedIpChange::Remove(net("10.1.0.0/16"))]
        );
        assert!(changes("10.0.0.0/8,+10.1.0.0/16").replace_allowed_ips);
    }

    #[test]
    fn words_beyond_wg() {
        let update = update(&[
            "peer",
            KEY,
            "name",
            "laptop",
            "role",
            "client",
            "endpoint",
            "192.0.2.1:1 via eth0, a.b:2 weight 3",
        ])
        .unwrap();
        let peer = &update.peers[0];
        assert_eq!((peer.name.as_deref(), peer.role), (Some("laptop"), Some(rustguard_core::routing::Role::Client)));
        let paths: Vec<_> = peer.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(paths, ["192.0.2.1:1 via eth0", "a.b:2 weight 3"]);
    }

    #[test]
    fn a_way_through_a_peer() {
        let relay = EndpointSpec::Peer(PublicKey([7; 32]));
        for endpoint in
            ["via-peer head office, 192.0.2.1:1", &format!("via-peer {}, 192.0.2.1:1", *to_base64(&[7; 32]))]
        {
            let update =
                update(&["forward", "on", "peer", KEY, "endpoint", endpoint, "direct", "off", "parity", "7"]).unwrap();
            assert_eq!((update.forward, update.peers[0].direct), (Some(true), Some(false)));
            assert_eq!(update.peers[0].parity, Change::Set(7));
            assert_eq!(update.peers[0].endpoints[0], relay.clone().into(), "{endpoint}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_remedy_and_without_keys() {
        for (words, says) in [
            (&["listen-prt", "1"][..], "listen-port, private-key"),
            (&["listen-port"], "needs a value"),
            (&["listen-port", "70000"], "0 to 65535"),
            (&["endpoint", "192.0.2.1:1"], "word for a peer"),
            (&["peer", KEY, "listen-port", "1"], "before the first `peer`"),
            (&["peer", KEY, "alowed-ips", "1"], "allowed-ips, name"),
            (&["peer", "nobody"], "no peer `nobody`"),
            (&["peer", &SECRET.replace('l', "!")], "not base64"),
            (&["peer", KEY, "endpoint", "192.0.2.1"], "has no port"),
            (&["peer", KEY, "allowed-ips", "10.0.0.0/33"], "/33"),
            (&["peer", KEY, "endpoint", "via-peer nobody"], "leads through a peer: no peer `nobody`"),
            (&["peer", KEY, "endpoint", "via-peer"], "no peer behind `via-peer`"),
            (&["peer", KEY, "endpoint", &format!("via-peer {KEY}")], "through the peer itself"),
            (&["peer", KEY, "direct", "yes"], "direct must be `on` or `off`"),
            (&["peer", KEY, "parity", "1"], "parity must be `off` or a number from 2 to 20"),
            (&["peer", KEY, "forward", "on"], "before the first `peer`"),
            (&["peer", KEY, "name", "a\nb"], "up to 63"),
            (&["private-key", SECRET], "file with the key"),
            (&["private-key", "broken"], "43 characters"),
            (&["private-key", "nowhere"], "nowhere"),
            (&["remove", "head office", "endpoint", "a.b:1"], "word for a peer"),
            (&[SECRET], "this length"),
        ] {
            let error = update(words).unwrap_err();
            assert!(error.contains(says) && !error.contains(&SECRET[4..40]), "{words:?}: {error}");
        }
    }
}
