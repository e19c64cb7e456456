//! The keys of `[Peer]`.

use super::{Holds, Kind, Order, Reader, Section, Told, list, switch};
use crate::conf::{Diagnostic, Peer, value};
use rustguard_core::routing::Role;
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Change, PeerUpdate, PresharedKey, key::to_base64};

type Key = super::Key<Peer>;

impl Section for Peer {
    type Update = PeerUpdate;

    const LISTED: Order<Self> = &[KEYS, ENDPOINT, ALLOWED_IPS, KEEPALIVE, PATHS];
    const PRINTED: Order<Self> = &[KEYS, ALLOWED_IPS, ENDPOINT, PATHS, KEEPALIVE];
    const TOLD: Order<Self> = &[NAME, KEYS, ALLOWED_IPS, ENDPOINT, KEEPALIVE, PATHS];
    const RESTARTED: Order<Self> = Self::LISTED;

    fn empty() -> Self {
        Self::new(PublicKey([0; 32]))
    }
}

/// The name is in a comment, which is read and written separately from the keys.
const NAME: &[Key] = &[Key::new("Name", Kind::One, |_, _| {}, |p| list(&p.name))
    .settle(|update, _, to| update.name = Some(to.name.clone().unwrap_or_default()))];

const KEYS: &[Key] = &[
    Key::new("PublicKey", Kind::One, public_key, |p| vec![to_base64(&p.public_key.0)]).of_wg().holds(Holds::PublicKeys),
    Key::new("PresharedKey", Kind::One, preshared_key, |p| {
        p.preshared_key.iter().map(|key| to_base64(key.as_bytes())).collect()
    })
    .of_wg()
    .holds(Holds::Secret)
    .told(Told::Secret)
    .same(|one, other| one.preshared_key == other.preshared_key)
    // A session lives for two minutes at most before the next handshake.
    .note(|_| Some("from the next handshake on"))
    .settle(|update, _, to| update.preshared_key = Change::set_or_remove(to.preshared_key.clone())),
];

/// All endpoints of a file are read at its end, because they may name any peer of it.
const ENDPOINT: &[Key] = &[Key::new("Endpoint", Kind::OneList, |_, _| {}, |p| list(&p.endpoints))
    .of_wg()
    .holds(Holds::PeerNames)
    .phrases()
    .note(|to| to.endpoints.is_empty().then_some("the present address stays until the peer is heard elsewhere"))
    .settle(|update, from, to| {
        (update.endpoints, update.replace_endpoints) = (to.endpoints.clone(), true);
        if from.leads_through_peers() != to.leads_through_peers() {
            update.direct = Some(to.looks_for_direct_paths());
        }
    })];

const ALLOWED_IPS: &[Key] = &[Key::new("AllowedIPs", Kind::Set, allowed_ips, |p| list(&p.allowed_ips))
    .of_wg()
    .told(Told::Nets(|p| &p.allowed_ips))
    .restart(&[(
        |_, from, to| from.interface.routing.learns() && from.defaults() != to.defaults(),
        "a default route may be learned or not; that is prepared when the tunnel starts",
    )])];

const KEEPALIVE: &[Key] = &[Key::new(
    "PersistentKeepalive",
    Kind::One,
    |p, r| p.persistent_keepalive = r.one(value::keepalive).flatten(),
    |p| list(p.persistent_keepalive.map(|interval| interval.as_secs())),
)
.of_wg()
.told(Told::Words(&[("PersistentKeepalive", |p| {
    p.persistent_keepalive.map_or_else(|| "off".to_owned(), |interval| format!("{} s", interval.as_secs()))
})]))
.settle(|update, _, to| update.persistent_keepalive = Change::set_or_remove(to.persistent_keepalive))];

const PATHS: &[Key] = &[
    Key::new("Direct", Kind::One, |p, r| p.direct = r.one(value::switch), |p| switch(p.direct))
        .told(Told::Values("as the endpoints say"))
        .settle(|update, _, to| update.direct = Some(to.looks_for_direct_paths())),
    Key::new("Parity", Kind::One, |p, r| p.parity = r.one(value::parity).flatten(), |p| list(p.parity))
        .told(Told::Values("off"))
        .settle(|update, _, to| update.parity = Change::set_or_remove(to.parity)),
    Key::new(
        "Role",
        Kind::One,
        |p, r| p.role = r.one(value::role),
        |p| {
            list(p.role.map(|role| match role {
                // In a file, only these two roles exist. A network can assign more.
                Role::Router | Role::Server | Role::Gateway => "router",
                Role::Client | Role::Member => "client",
            }))
        },
    )
    .needs_babel()
    .told(Told::Words(&[("Role", |p| {
        let word = match p.role {
            None | Some(Role::Router) => "router",
            Some(Role::Client) => "client",
            Some(Role::Member) => "member",
            Some(Role::Server) => "server",
            Some(Role::Gateway) => "gateway",
        };
        word.to_owned()
    })]))
    .settle(|update, _, to| update.role = Some(to.role.unwrap_or(Role::Router))),
];

fn public_key(peer: &mut Peer, reader: &mut Reader<'_, '_>) {
    let key = reader.one(value::key).map(|bytes| PublicKey(*bytes));
    if key.is_some_and(|key| key.0 == [0; 32]) {
        let at = reader.line.value.span();
        reader.diagnostics.push(Diagnostic::error(at, "PublicKey is all zeros, which is no key"));
    }
    // A malformed key was already reported. Zeros stand for it, so that it is not reported as missing too.
    peer.public_key = key.unwrap_or(PublicKey([0; 32]));
    reader.note(reader.line.value);
}

fn preshared_key(peer: &mut Peer, reader: &mut Reader<'_, '_>) {
    let key = reader.one(value::key).map(|bytes| PresharedKey::from_bytes(&bytes));
    if key.as_ref().is_some_and(PresharedKey::is_zero) {
        let message = "PresharedKey is all zeros, which means that there is none";
        let help = "remove the line, or make a key for both sides with `rustguard genpsk`";
        reader.warning(reader.line.value, message, help);
    }
    peer.preshared_key = key.filter(|key| !key.is_zero());
}

fn allowed_ips(peer: &mut Peer, reader: &mut Reader<'_, '_>) {
    for (net, item) in reader.list(value::net) {
        let whole = net.trunc();
        if net != whole {
            let message = format!("AllowedIPs `{}` is the network {whole}", item.str());
            let help = format!("write {whole}, or {}/{} for the host alone", net.addr(), net.max_prefix_len());
            reader.warning(item, message, help);
        }
        peer.allowed_ips.push(whole);
        reader.note(item);
    }
}
