//! The exchange of rosters on a running device: it provides the connections, the messages in both directions, and the
//! clock.

use futures_util::FutureExt as _;
use rustguard_core::{agenda::Agenda, constants::REJECT_AFTER_TIME, control_message::Kind, time::Instant};
use rustguard_crypto::x25519::PublicKey;
use rustguard_device::{Closed, DeviceHandle, Event, Events, EventsError, PresharedKey, Text, Texts, policy::Policy};
use rustguard_roster::{
    Version,
    exchange::{Exchange, Output},
    pair::{PairSecret, SecretId},
    roster::Roster,
    server_state::ServerState,
    statement::Statement,
};
use rustguard_tun::clock;
use std::{pin::pin, sync::Arc, time::Duration};

/// The number of texts that may wait for the driver: as many as the members of a network of 10,000 send to their server
/// when there is a new roster, and far more than a member has requested at any time.
const QUEUE: usize = 16_384;
/// The number of texts that are processed before answers are sent.
const BATCH: usize = 256;

/// An event of the exchange.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DriverEvent {
    /// There is a newer roster.
    Newer(Arc<Roster>),
    /// A server has sent the preshared key of the pair of this member and the one here.
    PairKey {
        /// The other member.
        member: PublicKey,
        /// The pair secret that the key is derived from.
        of: SecretId,
        /// The key.
        key: PresharedKey,
    },
    /// A member makes a statement about itself. The caller calls [`Driver::stored`] once it is stored. Until then, the
    /// member repeats it.
    Statement {
        /// The member.
        member: PublicKey,
        /// Its statement.
        statement: Statement,
    },
    /// The issuing server has sent this server the secret from which the keys of pairs are derived. It is to be stored.
    /// `None`: this machine is no longer a server, and the stored secret is to be deleted.
    PairSecret(Option<PairSecret>),
    /// This standby has the issuing server's newest state. The caller calls [`Driver::state_stored`] once it has
    /// replaced the previous one.
    State(ServerState),
    /// The device has ended.
    Ended,
}

/// Runs an [`Exchange`] inside the sessions of a device. It causes no handshake: only members with a session take part.
pub struct Driver {
    exchange: Exchange,
    device: DeviceHandle,
    texts: Texts,
    events: Events,
    sessions: Sessions,
    /// Whether events were missed: those before the driver started, or those that it was too slow for.
    missed: bool,
    /// A text that is being passed to the device.
    sending: Option<Text>,
}

impl Driver {
    /// Runs `exchange` on a device. `texts` come from [`texts`](Self::texts), `events` are those of the device from now
    /// on.
    pub fn new(exchange: Exchange, device: DeviceHandle, texts: Texts, events: Events) -> Self {
        Self { exchange, device, texts, events, sessions: Sessions::default(), missed: true, sending: None }
    }

    /// Makes a device that is to be started take part.
    #[must_use]
    pub fn texts(builder: rustguard_device::Builder) -> (rustguard_device::Builder, Texts) {
        builder.texts(|text| Kind::of(text) == Some(Kind::Roster), QUEUE)
    }

    /// The newest roster here.
    pub fn roster(&self) -> Option<&Arc<Roster>> {
        self.exchange.roster()
    }

    /// The connected peers, and the roster that each has, as far as it has said so.
    pub fn versions(&self) -> impl Iterator<Item = (PublicKey, Option<Version>)> {
        self.exchange.versions()
    }

    /// Takes the roster that was issued here, and tells the others of it. A roster that is not newer is ignored.
    /// Nothing is sent before [`next`](Self::next) is called.
    pub fn issue(&mut self, roster: impl Into<Arc<Roster>>) {
        self.exchange.issued(roster, now());
    }

    /// Sets the secret from which the preshared keys of pairs are derived, on the server that issues. The next roster
    /// has to name it.
    pub fn renew_pair_secret(&mut self, secret: &PairSecret) {
        self.exchange.renew_pair_secret(secret.clone());
    }

    /// Sets the members whose preshared key is wanted from a server.
    pub fn want_keys(&mut self, members: impl IntoIterator<Item = PublicKey>) {
        self.exchange.want_keys(members, now());
    }

    /// Sets this member's statement about itself. It is repeated to servers until they have stored it.
    pub fn state(&mut self, statement: Statement) {
        self.exchange.state(statement, now());
    }

    /// Sets the policy that the device enforces on incoming packets from now on. `None`: no policy of the network.
    pub fn enforce(&self, policy: Option<Policy>) {
        self.device.set_policy(policy);
    }

    /// Changes the key of this machine.
    pub fn set_own_key(&mut self, key: PublicKey) {
        self.exchange.set_own_key(key);
    }

    /// Whether a server has stored this member's last statement about itself.
    pub fn is_stated(&self) -> bool {
        self.exchange.is_stated()
    }

    /// The statement of a member is stored: the member gets an acknowledgement.
    pub fn stored(&mut self, member: &PublicKey, statement: &Statement) {
        self.exchange.stored(member, statement);
    }

    /// Sets the state of this server, which issues, and the standbys that get it ([`Exchange::tell_state`]).
    pub fn tell_state(&mut self, state: ServerState, standbys: impl IntoIterator<Item = PublicKey>) {
        self.exchange.tell_state(state, standbys, now());
    }

    /// The standbys, and when the state that each has stored was made ([`Exchange::standbys`]).
    pub fn standbys(&self) -> impl Iterator<Item = (PublicKey, Option<u64>)> {
        self.exchange.standbys()
    }

    /// This standby has stored the state of the last [`DriverEvent::State`].
    pub fn state_stored(&mut self) {
        self.exchange.state_stored();
    }

    /// Runs the exchange until there is an event for its owner. Dropping the future loses nothing.
    pub async fn next(&mut self) -> DriverEvent {
        loop {
            if let Some(event) = self.carry_out().await {
                return event;
            }
            if self.missed {
                match self.device.status().await {
                    Ok(status) => self.look(&status),
                    Err(Closed) => return DriverEvent::Ended,
                }
                continue;
            }
            let deadline = self.exchange.deadline().into_iter().chain(self.sessions.deadline()).min();
            let time = deadline.map(|deadline| deadline.since(now()));
            let due = async {
                match time {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.events.recv() => match event {
                    Ok(event) => self.handle(&event),
                    Err(EventsError::Lagged(_)) => self.missed = true,
                    Err(_) => return DriverEvent::Ended,
                },
                text = self.texts.recv() => match text {
                    Some(text) => self.hear(&text),
                    None => return DriverEvent::Ended,
                },
                () = due => {}
            }
            self.tick();
        }
    }

    /// Performs the outputs of the exchange, until one concerns the owner.
    async fn carry_out(&mut self) -> Option<DriverEvent> {
        loop {
            if let Some(text) = &self.sending {
                // The text stays here until the device has accepted it, because this future may be dropped meanwhile.
                self.device.say(text.clone()).await;
                self.sending = None;
            }
            match self.exchange.next_output()? {
                Output::Send { to, text } => self.sending = Some(Text::new(to, &text[..])),
                Output::Newer => return self.exchange.roster().cloned().map(DriverEvent::Newer),
                Output::PresharedKey { member, of, key } => return Some(DriverEvent::PairKey { member, of, key }),
                Output::PairSecret(secret) => return Some(DriverEvent::PairSecret(secret)),
                Output::State(state) => return Some(DriverEvent::State(state)),
                Output::Statement { from, statement } => {
                    return Some(DriverEvent::Statement { member: from, statement });
                }
                _ => {}
            }
        }
    }

    /// Takes a text and those queued behind it. They are answered together.
    fn hear(&mut self, text: &Text) {
        self.hear_one(text);
        for _ in 1..BATCH {
            let Some(Some(text)) = pin!(self.texts.recv()).now_or_never() else { break };
            self.hear_one(&text);
        }
    }

    fn hear_one(&mut self, text: &Text) {
        let now = now();
        // The first text of a session may arrive before the event, because it comes from a worker. It is authenticated
        // nevertheless.
        if !self.sessions.has(&text.peer) {
            self.sessions.began(text.peer, now);
            self.exchange.connected(&text.peer, now);
        }
        self.exchange.hear(&text.peer, &text.bytes, now);
    }

    fn handle(&mut self, event: &Event) {
        let now = now();
        match event {
            Event::HandshakeComplete { peer, .. } => {
                self.sessions.began(*peer, now);
                // Also when a session is renewed: earlier messages may have been lost together with the path.
                self.exchange.connected(peer, now);
            }
            Event::PeerRoamed { peer, .. } => self.exchange.moved(peer, now),
            Event::SessionExpired { peer, .. } | Event::PeerRemoved { peer, .. } => {
                self.sessions.ended(peer);
                self.exchange.gone(peer, now);
            }
            Event::PeerKeyChanged { before, peer, .. } => {
                self.sessions.renamed(before, *peer);
                self.exchange.renamed(before, peer);
            }
            _ => {}
        }
    }

    /// Learns from the device's status which peers are connected.
    fn look(&mut self, status: &rustguard_device::Status) {
        self.missed = false;
        let (now, unix) = (now(), clock::unix());
        let connected = status.peers.iter().filter_map(|peer| {
            let age = unix.saturating_sub(peer.last_handshake?);
            (age < REJECT_AFTER_TIME).then_some((age, peer.public_key))
        });
        let before = std::mem::take(&mut self.sessions);
        for (age, peer) in connected {
            self.sessions.began_before(peer, age, now);
            if !before.has(&peer) {
                self.exchange.connected(&peer, now);
            }
        }
        before.peers().filter(|peer| !self.sessions.has(peer)).for_each(|peer| self.exchange.gone(peer, now));
    }

    fn tick(&mut self) {
        let now = now();
        while let Some(peer) = self.sessions.over(now) {
            self.exchange.gone(&peer, now);
        }
        if self.exchange.deadline().is_some_and(|deadline| deadline <= now) {
            self.exchange.tick(now);
        }
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::boottime_nanos())
}

/// The members with a usable session. The device reports the end of a session when it erases the keys, minutes after
/// the session became unusable. Sending a text then would start a new handshake.
#[derive(Default)]
struct Sessions(Agenda<PublicKey>);

impl Sessions {
    fn began(&mut self, peer: PublicKey, now: Instant) {
        self.began_before(peer, Duration::ZERO, now);
    }

    fn began_before(&mut self, peer: PublicKey, age: Duration, now: Instant) {
        self.0.set(peer, now + REJECT_AFTER_TIME.saturating_sub(age));
    }

    fn ended(&mut self, peer: &PublicKey) {
        self.0.remove(peer);
    }

    /// The session continues under another key. There may be a newer session under that key already: the later end
    /// counts.
    fn renamed(&mut self, before: &PublicKey, peer: PublicKey) {
        if let Some(until) = self.0.remove(before).max(self.0.get(&peer)) {
            self.0.set(peer, until);
        }
    }

    fn has(&self, peer: &PublicKey) -> bool {
        self.0.get(peer).is_some()
    }

    fn peers(&self) -> impl Iterator<Item = &PublicKey> {
        self.0.keys()
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    /// Removes and returns a member whose session is over.
    fn over(&mut self, now: Instant) -> Option<PublicKey> {
        self.0.take_due(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_renewed_does_not_end() {
        let mut sessions = Sessions::default();
        let [one, other] = [1, 2].map(|byte| PublicKey([byte; 32]));
        let at = |seconds| Instant::from_nanos(0) + Duration::from_secs(seconds);
        sessions.began(one, at(0));
        sessions.began(other, at(10));
        sessions.began(one, at(120));
        assert_eq!(sessions.over(at(189)), None);
        assert_eq!(sessions.over(at(190)), Some(other));
        assert_eq!((sessions.over(at(190)), sessions.deadline()), (None, Some(at(300))));
        assert_eq!(sessions.0.len(), 1, "what is renewed often takes no more room");
        assert!(sessions.has(&one) && !sessions.has(&other));
        let third = PublicKey([3; 32]);
        sessions.renamed(&one, third);
        assert!(sessions.has(&third) && !sessions.has(&one), "the same session by another key");
        assert_eq!(sessions.over(at(300)), Some(third));
        assert_eq!(sessions.deadline(), None);
    }

    /// A member that changes its key twice in a minute has a session under the new key before the control thread learns
    /// of the change.
    #[test]
    fn a_change_to_a_key_that_has_a_session_ends_once() {
        let mut sessions = Sessions::default();
        let [old, new] = [1, 2].map(|byte| PublicKey([byte; 32]));
        let at = |seconds| Instant::from_nanos(0) + Duration::from_secs(seconds);
        for (began, until) in [(at(0), at(190)), (at(20), at(200))] {
            sessions.began(old, began);
            sessions.began(new, at(10));
            sessions.renamed(&old, new);
            assert_eq!(sessions.deadline(), Some(until), "the later of both");
            assert_eq!((sessions.over(at(500)), sessions.over(at(500)), sessions.deadline()), (Some(new), None, None));
        }
    }
}
