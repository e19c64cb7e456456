//! Writes a [`Config`] to a file.

use super::{Config, NodeName, Peer, Pin, Routing, Table, parse::is_name};
use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use rustguard_core::routing::Role;
use rustguard_device::{SourceCheck, key::to_base64};
use std::{
    fmt::{Display, Write as _},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};
use zeroize::Zeroizing;

/// Writes the file in the order of `wg showconf`, with wg-quick's keys first, like wg-quick's `save`. The file is
/// replaced atomically: readers see either the old contents or the new contents. Only its owner may read it.
///
/// # Errors
/// The file cannot be written. The old file is then unchanged.
pub fn write(path: &Path, config: &Config) -> io::Result<()> {
    write_with_comment(path, "", config)
}

/// Like [`write()`], with a comment at the beginning. The comment consists of whole lines, each with its `#`. The file
/// is durable on return.
///
/// # Errors
/// The file cannot be written. The old file is then unchanged.
pub fn write_with_comment(path: &Path, comment: &str, config: &Config) -> io::Result<()> {
    // A symbolic link stays, and its target is replaced.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut file = AtomicWriteFile::options().mode(0o600).preserve_mode(false).open(path)?;
    file.write_all(comment.as_bytes())?;
    file.write_all(to_text(config).as_bytes())?;
    file.commit()
}

/// The text of the file. [`parse`](super::parse) restores the same configuration from it.
pub fn to_text(config: &Config) -> Zeroizing<String> {
    let interface = &config.interface;
    // The capacity covers the whole text, because a reallocation would leave a copy of the private key behind.
    let hooks = [&interface.pre_up, &interface.post_up, &interface.pre_down, &interface.post_down];
    let hook_bytes: usize = hooks.iter().flat_map(|hooks| hooks.iter()).map(|hook| hook.len() + 16).sum();
    let peer_bytes: usize = config.peers.iter().map(|peer| 1024 + 64 * peer.allowed_ips.len()).sum();
    let lists = interface.announce.len()
        + interface.redistribute.len()
        + interface.pins.len()
        + interface.addresses.len()
        + interface.dns.len()
        + interface.dns_search.len();
    let mut out = Zeroizing::new(String::with_capacity(1024 + 256 * lists + hook_bytes + peer_bytes));

    out.push_str("[Interface]\n");
    for address in &interface.addresses {
        line(&mut out, "Address", address);
    }
    let dns = interface.dns.iter().map(ToString::to_string).chain(interface.dns_search.iter().cloned());
    let dns = dns.collect::<Vec<_>>().join(", ");
    line_unless(&mut out, dns.is_empty(), "DNS", dns);
    maybe(&mut out, "MTU", interface.mtu);
    match interface.table {
        Table::Auto => {}
        Table::Off => line(&mut out, "Table", "off"),
        Table::Number(number) => line(&mut out, "Table", number),
    }
    line_unless(&mut out, !interface.save_config, "SaveConfig", true);
    maybe(&mut out, "HandshakeOnUp", interface.handshake_on_up);
    line_unless(&mut out, interface.routing == Routing::Static, "Routing", "babel");
    let announce = interface.announce.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    line_unless(&mut out, announce.is_empty(), "Announce", announce);
    let redistribute = interface.redistribute.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    line_unless(&mut out, redistribute.is_empty(), "Redistribute", redistribute);
    for Pin { prefix, key } in &interface.pins {
        line(&mut out, "Pin", format_args!("{prefix} {}", *to_base64(&key.0)));
    }
    let check = interface.source_check;
    line_unless(&mut out, check == SourceCheck::Enforce, "SourceCheck", check.name());
    match &interface.node_name {
        NodeName::Host => {}
        NodeName::Off => line(&mut out, "NodeName", "off"),
        NodeName::Is(name) => line(&mut out, "NodeName", name),
    }
    for (key, hooks) in ["PreUp", "PostUp", "PreDown", "PostDown"].into_iter().zip(hooks) {
        for hook in hooks {
            line(&mut out, key, hook);
        }
    }
    maybe(&mut out, "ListenPort", interface.listen_port);
    maybe(&mut out, "FwMark", interface.fwmark.map(|mark| format!("{mark:#x}")));
    if let Some(key) = &interface.private_key {
        line(&mut out, "PrivateKey", &*to_base64(&Zeroizing::new(key.to_bytes())));
    }
    for peer in &config.peers {
        push_peer(&mut out, peer);
    }
    out
}

fn push_peer(out: &mut String, peer: &Peer) {
    out.push('\n');
    // An embedder may have set the name. A name that could end its comment line is left out.
    maybe(out, "# Name", peer.name.as_ref().filter(|name| is_name(name)));
    out.push_str("[Peer]\n");
    line(out, "PublicKey", &*to_base64(&peer.public_key.0));
    if let Some(key) = &peer.preshared_key {
        line(out, "PresharedKey", &*to_base64(key.as_bytes()));
    }
    let allowed_ips = peer.allowed_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    line_unless(out, allowed_ips.is_empty(), "AllowedIPs", allowed_ips);
    let endpoints = peer.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    line_unless(out, endpoints.is_empty(), "Endpoint", endpoints);
    let role = peer.role.map(|role| match role {
        Role::Router => "router",
        Role::Client => "client",
    });
    maybe(out, "Role", role);
    maybe(out, "PersistentKeepalive", peer.persistent_keepalive.map(|interval| interval.as_secs()));
}

fn line(out: &mut String, key: &str, value: impl Display) {
    writeln!(out, "{key} = {value}").expect("writing to a String cannot fail");
}

fn maybe(out: &mut String, key: &str, value: Option<impl Display>) {
    if let Some(value) = value {
        line(out, key, value);
    }
}

fn line_unless(out: &mut String, unless: bool, key: &str, value: impl Display) {
    if !unless {
        line(out, key, value);
    }
}
