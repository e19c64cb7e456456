//! The commands of the control socket.

use super::Service;
use crate::{
    clock::now,
    documents::servers,
    network::{Network, key_before::KeyBefore},
    request::{
        AddPeer, Added, Answer, ConnectionView, CounterView, InviteState, InviteView, NewInvite, PeerState, PeerView,
        PoolView, ProblemView, Removed, Request, Status, Unused, WaitingView, WindowSecret, WindowView,
    },
    socket::{Call, Caller},
};
use rustguard_crypto::{random::SystemRng, x25519::PublicKey};
use rustguard_device::{Connection, PeerStatus, key};
use rustguard_enroll::{
    lease::{InviteRecord, Lease, MAX_NAME, Origin, ServerRole, Terms, TokenId, clean_name},
    server::{ApprovalCode, InviteOptions, NewPeer, OpenOptions},
    store::LeaseStore,
    token::{MAX_ENDPOINT, MAX_ENDPOINTS},
};
use rustguard_network::roster::label::Label;
use std::{collections::HashMap, net::IpAddr, time::Duration};

/// An error is a text for people.
pub(super) type Result<T> = std::result::Result<T, String>;

/// Whether a request changes something that members have to know. Such a request completes when they are told.
fn is_told(request: &Request) -> bool {
    matches!(
        request,
        Request::AddPeer(_)
            | Request::RemovePeer { .. }
            | Request::RenamePeer { .. }
            | Request::AllowPrefixes { .. }
            | Request::DenyPrefixes { .. }
            | Request::TagPeer { .. }
            | Request::UntagPeer { .. }
            | Request::RotateKey { .. }
            | Request::Reload { dry_run: false, .. }
            | Request::Adopt { dry_run: false }
    )
}

impl<S: LeaseStore> Service<S> {
    /// Carries out a request of a program that embeds the service, like a request through the control socket.
    pub async fn request(&mut self, request: Request) -> Answer {
        self.answer(request, &Caller::own()).await
    }

    pub(super) async fn call(&mut self, call: Call) {
        let answer = self.answer(call.request, &call.caller).await;
        // The caller may have disconnected.
        let _ = call.answer.send(answer);
    }

    /// Carries out a request. The answer is returned after the request was carried out.
    async fn answer(&mut self, request: Request, caller: &Caller) -> Answer {
        if let Err(refusal) = caller.check(request.permission()) {
            return Answer::refused(refusal);
        }
        let is_told = is_told(&request);
        let mut answer = match request {
            Request::Status => self.status().await,
            Request::Reload { dry_run: true, restored } => self.reload(true, restored).await,
            Request::Reload { dry_run: false, restored } => match self.take_policy() {
                Ok(before) => {
                    let reloaded = self.reload(false, restored).await;
                    if let (Err(_), Some(before)) = (&reloaded, before) {
                        self.put_policy_back(before);
                    }
                    reloaded
                }
                Err(error) => Err(error),
            },
            Request::CheckSettings { settings } => self.check_settings(&settings),
            Request::Adopt { dry_run } => self.decided(|service| service.adopt(dry_run)).await.flatten(),
            Request::Peers => self.peers().await.map(|peers| Answer::Peers { peers }),
            Request::RotateKey { consent } => self.change_key(consent).await,
            Request::Backup => self.back_up(),
            Request::Restore { consent } => self.restore(consent),
            Request::WebLink { name } => self.web_link(&name),
            Request::WebEnd => self.web_end(),
            Request::WebSession { event } => Ok(self.web_session(event)),
            request => self.decided(|service| service.command(request.clone())).await.flatten(),
        };
        self.carry_out(&[], Some(caller)).await;
        if is_told && answer.is_ok() {
            let shared = self.share_documents().await;
            self.use_documents().await;
            answer = shared.and_then(|()| self.publish()).and(answer);
        }
        answer.unwrap_or_else(Answer::refused)
    }

    fn command(&mut self, request: Request) -> Result<Answer> {
        let (now, rng) = (now(), &mut SystemRng);
        match request {
            Request::Open { seconds, approve } => {
                let options = OpenOptions::default()
                    .with_duration(Duration::from_secs(seconds))
                    .with_passphrase(self.passphrase.clone())
                    .with_approve(approve);
                let opened = self.server.open(options, now, rng, &mut self.actions).map_err(text)?;
                let code = opened.code.map(|code| code.to_text().into());
                let seconds = whole_seconds(opened.until.since(now.instant));
                Ok(Answer::Opened { seconds, code, endpoint: self.endpoint() })
            }
            Request::Close => match self.server.close(now, &mut self.actions) {
                true => Ok(Answer::Done),
                false => Err("no window is open".to_owned()),
            },
            Request::Approve { code } => {
                let code = approval_code(&code)?;
                let waiting = self.server.pending_approvals();
                let name = waiting.into_iter().find(|waiting| waiting.code == code).and_then(|waiting| waiting.name);
                self.server.approve(code, now, &mut self.actions).map_err(text)?;
                Ok(Answer::Approved { name })
            }
            Request::Refuse { code } => {
                self.server.refuse(approval_code(&code)?, now, &mut self.actions).map_err(text)?;
                Ok(Answer::Done)
            }
            Request::NewInvite(invite) => self.new_invite(invite),
            Request::Invites => {
                let time = now.unix.as_secs();
                let mut invites: Vec<_> = self.server.ledger().invites().collect();
                invites.sort_by_key(|invite| invite.serial);
                Ok(Answer::Invites {
                    invites: invites.into_iter().map(|invite| self.invite_view(invite, time)).collect(),
                })
            }
            Request::RevokeInvite { id } => {
                let id = self.invite_id(&id)?;
                self.server.revoke_invite(&id, now, &mut self.actions).map_err(text)?;
                Ok(Answer::Done)
            }
            Request::AddPeer(peer) => self.add_peer(peer),
            Request::RemovePeer { peer, revoke } => self.remove_peer(&peer, revoke),
            Request::RenamePeer { peer, name } => {
                let key = self.find(&peer)?;
                let name = proper_name(&name)?;
                self.check_free(&name, &key)?;
                self.server.rename_peer(&key, &name, now, &mut self.actions).map_err(text)?;
                if let Some(network) = &mut self.network {
                    network.renamed(&key);
                }
                Ok(Answer::Done)
            }
            Request::AllowPrefixes { peer, prefixes, default_route } => {
                self.allow_prefixes(&peer, &prefixes, default_route)
            }
            Request::DenyPrefixes { peer, prefixes } => self.deny_prefixes(&peer, &prefixes),
            Request::TagPeer { peer, tags } => self.tag_peer(&peer, &tags),
            Request::UntagPeer { peer, tags } => self.untag_peer(&peer, &tags),
            Request::Status
            | Request::Peers
            | Request::Reload { .. }
            | Request::CheckSettings { .. }
            | Request::Adopt { .. }
            | Request::RotateKey { .. }
            | Request::Backup
            | Request::Restore { .. }
            | Request::WebLink { .. }
            | Request::WebEnd
            | Request::WebSession { .. } => {
                unreachable!("answered by `call`")
            }
        }
    }

    fn new_invite(&mut self, invite: NewInvite) -> Result<Answer> {
        let defaults = InviteOptions::default();
        let endpoint = self.endpoint_or(invite.endpoint.as_deref())?;
        let others = if invite.endpoint.is_some() { Vec::new() } else { self.other_endpoints() };
        let endpoints = invites_endpoints(endpoint.clone(), others);
        if invite.standby && self.shared.is_some() {
            return Err("servers on a store need no standby: each of them has everything".to_owned());
        }
        let ledger = self.server.ledger();
        let terms = Terms::default()
            .with_addresses(invite.addresses)
            .with_tags(invite.tags)
            .with_ephemeral(invite.ephemeral)
            .with_admitted(ledger.check_prefixes(&invite.prefixes, invite.default_route).map_err(text)?)
            .with_server(if invite.standby { ServerRole::Standby } else { invite.server.into() });
        let (now, uses) = (now(), invite.uses.unwrap_or(defaults.uses));
        let like = |other: &&InviteRecord| {
            let unused = other.uses_left == other.uses && state_of(other, now.unix.as_secs()) == InviteState::Usable;
            unused && other.uses == uses && other.terms == terms
        };
        let unused: Vec<_> = self.server.ledger().invites().filter(like).cloned().collect();
        if let Some(last) = unused.iter().max_by_key(|invite| invite.serial).filter(|_| invite.unused == Unused::Refuse)
        {
            return Ok(Answer::Unused { invite: self.invite_view(last, now.unix.as_secs()) });
        }
        let options = InviteOptions::default()
            .with_uses(uses)
            .with_expires(invite.seconds.map(Duration::from_secs).or(defaults.expires))
            .with_terms(terms)
            .with_endpoints(endpoints);
        let replace = invite.unused == Unused::Revoke;
        let invite = self.server.new_invite(options, now, &mut SystemRng, &mut self.actions).map_err(text)?;
        for former in unused.iter().filter(|_| replace) {
            self.server.revoke_invite(&former.id, now, &mut self.actions).map_err(text)?;
        }
        let expires = self.server.ledger().invite(&invite.id()).and_then(|record| record.expires);
        Ok(Answer::Invite { token: invite.to_text().into(), id: invite.id(), endpoint, expires })
    }

    fn add_peer(&mut self, peer: AddPeer) -> Result<Answer> {
        let key = key::from_base64(&peer.public_key).map_err(|error| format!("`{}`: {error}", peer.public_key))?;
        let (key, name) = (PublicKey(*key), proper_name(&peer.name)?);
        if self.server.ledger().leases().any(|lease| lease.name.as_ref() == Some(&name)) {
            return Err(format!("there is a peer {name} already; choose another name, or remove that one"));
        }
        let endpoint = self.endpoint_or(peer.endpoint.as_deref())?;
        let endpoint = endpoint.ok_or("the address of this server is not known; give it: --endpoint HOST[:PORT]")?;
        let terms = Terms::default().with_addresses(peer.addresses);
        let (now, rng) = (now(), &mut SystemRng);
        let peer = NewPeer::default()
            .with_name(name)
            .with_terms(terms)
            .with_within(peer.pending_seconds.map(Duration::from_secs));
        let lease = self.server.add_peer(key, peer, now, rng, &mut self.actions).map_err(text)?;
        Ok(Answer::Added(Added {
            addresses: lease.addresses().map(Into::into).collect(),
            allowed_ips: self.settings.advised_routes(),
            dns: self.settings.dns.clone(),
            search: self.settings.search.clone(),
            server_key: *self.server.public_key(),
            preshared_key: lease.preshared_key,
            endpoint: Some(endpoint),
        }))
    }

    fn remove_peer(&mut self, peer: &str, revoke: bool) -> Result<Answer> {
        let (key, now) = (self.find(peer)?, now());
        if revoke {
            // The grant is withdrawn first, so that the removed machine cannot use it in between.
            self.server.withdraw_grant(&key, now, &mut self.actions).map_err(text)?;
        }
        let lease = self.server.remove_peer(&key, now, &mut self.actions).map_err(text)?;
        let ledger = self.server.ledger();
        let by_window = lease.origin == Origin::Window;
        let (invite, others) = match lease.origin {
            Origin::Invite(id) => {
                (ledger.invite(&id), ledger.leases().filter(|other| other.origin == lease.origin).count())
            }
            Origin::Window | Origin::Admin => (None, 0),
        };
        Ok(Answer::Removed(Removed {
            addresses: lease.addresses().collect(),
            origin: lease.origin.into(),
            invite: invite.map(|invite| self.invite_view(invite, now.unix.as_secs())),
            others,
            window_open: by_window && self.server.window().is_some(),
            passphrase: by_window && self.passphrase.is_some(),
            peer: lease.name.unwrap_or_else(|| key::to_base64(&key.0).to_string()),
        }))
    }

    pub(super) async fn status(&self) -> Result<Answer> {
        let instant = now().instant;
        let time = now().unix.as_secs();
        let peers = self.peers().await?;
        let (v4, v6) = self.server.ledger().pools().capacity();
        let pools = self.settings.own_addresses().into_iter().map(|own| PoolView {
            capacity: (if own.addr().is_ipv4() { v4 } else { v6 }).try_into().unwrap_or(u64::MAX),
            prefix: own.trunc(),
            address: own.addr(),
            leased: peers.iter().flat_map(|peer| &peer.addresses).filter(|&address| own.contains(address)).count(),
        });
        let window = self.server.window().map(|window| WindowView {
            seconds_left: whole_seconds(window.until.since(instant)),
            secret: if window.code { WindowSecret::Code } else { WindowSecret::Passphrase },
            attempts_left: window.attempts_left,
            approve: window.approve,
        });
        let waiting = self.server.pending_approvals().into_iter().map(|waiting| WaitingView {
            code: waiting.code.to_string(),
            name: waiting.name,
            source: waiting.source,
        });
        let invites = self.server.ledger().invites();
        Ok(Answer::Status(Box::new(Status {
            interface: self.interface.clone(),
            public_key: self.identity.public_key(),
            port: self.settings.port,
            endpoint: self.endpoint(),
            pools: pools.collect(),
            isolate: self.settings.isolate,
            routes: self.settings.routes.iter().map(ipnet::IpNet::trunc).collect(),
            nat: self.settings.nat,
            window,
            waiting: waiting.collect(),
            usable_invites: invites.filter(|invite| state_of(invite, time) == InviteState::Usable).count(),
            peers,
            counters: self
                .counters
                .snapshot()
                .into_iter()
                .map(|counter| CounterView { name: counter.name.to_owned(), count: counter.value })
                .collect(),
            network: self.network.as_ref().map(|network| network.view(&self.settings, &self.interface)),
            store: self.store_view(),
        })))
    }

    async fn peers(&self) -> Result<Vec<PeerView>> {
        let status = self.device.status().await.map_err(|_| "the tunnel is shutting down")?;
        let live: HashMap<&[u8; 32], &PeerStatus> =
            status.peers.iter().map(|peer| (&peer.public_key.0, peer)).collect();
        // Each of several servers has a lease, also this one.
        let own = self.identity.public_key();
        let mut leases: Vec<_> = self.server.ledger().leases().filter(|lease| lease.public_key != own).collect();
        leases.sort_by_key(|lease| (lease.v4, lease.v6));
        let place = self.network.as_ref().map(Network::places);
        let view = |lease: &Lease| {
            let (label, roster) = place.as_ref().map_or((None, None), |place| place(&lease.public_key));
            let network = self.network.as_ref();
            let version = network.and_then(|network| network.program(&lease.public_key)).map(str::to_owned);
            PeerView { label, roster, version, ..peer_view(lease, live.get(&lease.public_key.0).copied()) }
        };
        Ok(leases.into_iter().map(view).collect())
    }

    fn invite_view(&self, invite: &InviteRecord, time: u64) -> InviteView {
        invite_view(invite, self.key_before.as_ref(), time)
    }

    /// The server's endpoint for joiners.
    fn endpoint(&self) -> Option<String> {
        self.settings.reachable_at()
    }

    /// The endpoints of the other servers that answer the key of an invite.
    fn other_endpoints(&self) -> Vec<String> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let own = self.identity.public_key();
        let others = servers(shared.link.documents()).into_iter().filter(|key| *key != own);
        let leases = others.filter_map(|key| self.server.ledger().lease(&key));
        leases.filter_map(|lease| lease.endpoints.first()).map(ToString::to_string).collect()
    }

    /// The given endpoint of the server, checked and with its port, or else the one that the server determines.
    fn endpoint_or(&self, given: Option<&str>) -> Result<Option<String>> {
        match given {
            Some(given) => self.settings.complete(given).map(Some).map_err(text),
            None => Ok(self.endpoint()),
        }
    }

    /// The peer with this name, address or public key.
    pub(super) fn find(&self, peer: &str) -> Result<PublicKey> {
        let ledger = self.server.ledger();
        let none = || format!("there is no peer {peer}; `rustguard peer ls` lists them");
        if let Ok(address) = peer.parse::<IpAddr>() {
            return ledger.by_address(address).map(|lease| lease.public_key).ok_or_else(none);
        }
        if let Ok(key) = key::from_base64(peer) {
            return ledger.lease(&PublicKey(*key)).map(|lease| lease.public_key).ok_or_else(none);
        }
        // One machine's own name may be another machine's name in the network. The text then matches both.
        let label = self.network.as_ref().and_then(|network| network.named(peer));
        let is_named = |lease: &&Lease| lease.name.as_deref() == Some(peer) || label == Some(lease.public_key);
        let named: Vec<&Lease> = ledger.leases().filter(is_named).collect();
        match &*named {
            [] => Err(none()),
            [lease] => Ok(lease.public_key),
            several => {
                let addresses = several.iter().flat_map(|lease| lease.addresses());
                let addresses: Vec<_> = addresses.map(|address| address.to_string()).collect();
                Err(format!(
                    "{} peers are called {peer}; say which by its address: {}",
                    several.len(),
                    addresses.join(", ")
                ))
            }
        }
    }

    /// Checks that no other member has this name in the network. The ledger has the names that machines choose, and the
    /// network has unique names: of two machines that choose `laptop`, one is `laptop-2`.
    fn check_free(&self, name: &str, key: &PublicKey) -> Result<()> {
        let label = Label::clean(name);
        let holder = label.zip(self.network.as_ref()).and_then(|(label, network)| network.named(label.as_str()));
        match holder {
            Some(holder) if holder == self.identity.public_key() => {
                Err(format!("this server is called {name} in the network; choose another name"))
            }
            // A removed machine has its name until the next roster.
            Some(holder)
                if holder != *key
                    && let Some(lease) = self.server.ledger().lease(&holder) =>
            {
                let addresses: Vec<_> = lease.addresses().map(|address| address.to_string()).collect();
                Err(format!(
                    "the peer {} is called {name} in the network; choose another name, or remove or rename that peer",
                    addresses.join(", ")
                ))
            }
            _ => Ok(()),
        }
    }

    /// The invite whose id starts with this text.
    fn invite_id(&self, text: &str) -> Result<TokenId> {
        let lower = text.to_ascii_lowercase();
        let ids = self.server.ledger().invites().map(|invite| invite.id);
        let ids: Vec<_> = ids.filter(|id| !lower.is_empty() && id.to_string().starts_with(&lower)).collect();
        match &*ids {
            [id] => Ok(*id),
            [] => Err(format!("there is no invite {text}; `rustguard invite ls` lists them")),
            _ => Err(format!("several invites begin with {text}; give more of it")),
        }
    }
}

/// The endpoints of an invite: that of this server, and those of others, as far as they fit.
fn invites_endpoints(own: Option<String>, others: Vec<String>) -> Vec<String> {
    let mut endpoints: Vec<_> = own.into_iter().collect();
    for other in others {
        let len: usize = endpoints.iter().map(|endpoint| endpoint.len() + 1).sum();
        if endpoints.len() < MAX_ENDPOINTS && len + other.len() <= MAX_ENDPOINT && !endpoints.contains(&other) {
            endpoints.push(other);
        }
    }
    endpoints
}

fn approval_code(code: &str) -> Result<ApprovalCode> {
    ApprovalCode::parse(code).ok_or_else(|| {
        format!(
            "`{code}` is not eight digits; `rustguard status` has all of them (programs before this one show the last six)"
        )
    })
}

pub(super) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Rounds up, so that a new window of 60 seconds shows 60.
fn whole_seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX)
}

fn proper_name(name: &str) -> Result<String> {
    if Label::clean(name).is_some_and(|label| label.is_of_programs()) {
        return Err(format!("`{name}` is a name that programs look up by themselves, and trust; choose another one"));
    }
    clean_name(name).filter(|clean| clean == name).ok_or_else(|| {
        format!(
            "`{name}` is no name: 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`, with no `-` or `.` at its ends"
        )
    })
}

pub(super) fn state_of(invite: &InviteRecord, time: u64) -> InviteState {
    if invite.revoked.is_some() {
        InviteState::Revoked
    } else if invite.uses_left == 0 {
        InviteState::Used
    } else if invite.expires.is_some_and(|expires| expires <= time) {
        InviteState::Expired
    } else {
        InviteState::Usable
    }
}

/// An invite that names the previous key ends with that key.
pub(super) fn invite_view(invite: &InviteRecord, before: Option<&KeyBefore>, time: u64) -> InviteView {
    let ends = before.filter(|before| before.is_named_by(invite)).map(|before| before.until);
    InviteView {
        id: invite.id,
        state: state_of(invite, time),
        uses_left: invite.uses_left,
        created: invite.created,
        expires: [invite.expires, ends].into_iter().flatten().min(),
        tags: invite.terms.tags.clone(),
        ephemeral: invite.terms.ephemeral,
        prefixes: invite.terms.admitted.clone(),
        server: invite.terms.server.is_server(),
        standby: invite.terms.server == ServerRole::Standby,
    }
}

fn peer_view(lease: &Lease, live: Option<&PeerStatus>) -> PeerView {
    // The device has the exact time while it runs. The lease has a coarse time, which is durable.
    let handshake = live.and_then(|live| live.last_handshake).map(|at| at.as_secs()).or(lease.last_handshake);
    // A guest's lease is active, but it ends if no handshake completes in time.
    let guest = lease.origin == Origin::Admin && lease.expires.is_some() && handshake.is_none();
    PeerView {
        name: lease.name.clone(),
        public_key: lease.public_key,
        addresses: lease.addresses().collect(),
        state: if lease.is_pending() || guest { PeerState::Pending } else { PeerState::Active },
        origin: lease.origin.into(),
        tags: lease.tags.clone(),
        ephemeral: lease.ephemeral,
        member: lease.member,
        server: lease.server.is_server(),
        prefixes: lease.prefixes().collect(),
        admitted: lease.admitted.clone(),
        waiting: lease.waiting().collect(),
        created: lease.created,
        expires: lease.expires,
        last_handshake: handshake,
        endpoint: live.and_then(|live| live.endpoint),
        connection: connection(lease, live),
        problem: live.and_then(|live| live.problem.as_ref()).map(ProblemView::from),
        rx_bytes: live.map_or(0, |live| live.rx_bytes),
        tx_bytes: live.map_or(0, |live| live.tx_bytes),
        label: None,
        roster: None,
        version: None,
    }
}

/// Whether the peer can be reached. A peer that was not heard since the server's start has been idle since its last
/// handshake.
fn connection(lease: &Lease, live: Option<&PeerStatus>) -> ConnectionView {
    let known = live.map(|live| live.connection).unwrap_or_default();
    let idle = |at| Connection::Idle { since: Duration::from_secs(at) };
    let earlier = lease.last_handshake.filter(|_| known == Connection::NeverConnected);
    ConnectionView::from(&earlier.map_or(known, idle))
}
