//! The joiner's side: sends and repeats messages until it has a lease or a final refusal.
//!
//! ```text
//! invite: Initiated ─────────────────► Claiming ──► done
//! code:   Sharing ──► Proving ────────►   │
//!            ▲            (waits)         │ the server forgot us: once more from the start,
//!            └────────────────────────────┘ with the same WireGuard key, for the same lease
//! ```
//!
//! A server that is down, has no open window or does not know the token is silent. The client does not give up by
//! itself, because windows open and servers come back. Final failures are reported as [`JoinError`].
mod accept;
#[cfg(test)]
mod hostile;
mod joined;
#[cfg(test)]
mod tests;

pub use crate::{
    approval::ApprovalCode,
    config::{MAX_DNS, MAX_ROUTES, MAX_SEARCH},
    join_error::JoinError,
};
use crate::{
    config::ServerConfig,
    invite::{self, Initiated},
    kem::{DecapsulationKey, Kem},
    pake::{self, Proving, Shared, WindowSecret},
    payload::{Decision, GrantText, Greeting, Joiner},
    schedule::{ClaimKeys, Keys, open, seal},
    token::{Invite, Token},
    wire::{self, CLAIM, Cookie, Grant, Index, Message},
};
pub use accept::{Accepted, LeftOut, LocalPolicy, Unacceptable};
use core::{fmt, time::Duration};
use ipnet::IpNet;
pub use joined::{Heard, Joined};
use rand_core::CryptoRng;
use rustguard_core::{
    cookie::Maker,
    tai64n::Timestamp,
    time::{Instant, Now},
};
use rustguard_crypto::x25519::{PublicKey, StaticSecret};

/// The pause between the first and the second try of a message. Each further pause is twice as long.
pub const FIRST_RETRY: Duration = Duration::from_millis(250);
/// The longest pause between first messages, to a server that may not be there.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause between messages to a server that has just answered.
pub const SESSION_PAUSE: Duration = Duration::from_secs(1);
/// The pause between questions whether we are approved.
pub const APPROVAL_PAUSE: Duration = Duration::from_millis(1500);
/// The number of unanswered proofs after which the secret counts as wrong. The server waits for proofs for the same
/// time.
const PROOF_TRIES: u32 = 11;
/// The number of unanswered claims after which the client starts a new exchange.
const CLAIM_TRIES: u32 = 12;
/// The number of unanswered questions after which the approval counts as refused.
const APPROVAL_TRIES: u32 = 20;

/// Joins a network through one server. The embedder resolves the server's name, again when needed.
pub struct Client {
    identity: StaticSecret,
    joiner: Joiner,
    credential: Credential,
    maker: Maker,
    kem: Kem,
    /// The timestamp of the last initiation. The next one must be later, whatever the clock says.
    timestamp: Option<Timestamp>,
    stage: Stage,
    /// How often the message of this stage was sent since the last answer.
    tries: u32,
    next: Instant,
}

enum Credential {
    Invite(Invite),
    Secret(WindowSecret),
}

enum Stage {
    /// No exchange is active.
    Begin,
    Initiated(Box<Initiated>),
    Sharing(Box<Shared>),
    Proving {
        proving: Box<Proving>,
        /// The server said that it waits for an administrator.
        waiting: bool,
    },
    Claiming(Box<Claiming>),
    /// Joined or failed.
    Over,
}

struct Claiming {
    sender: Index,
    keys: ClaimKeys,
    secret: DecapsulationKey,
    server: PublicKey,
    config: ServerConfig,
    message: Vec<u8>,
}

impl Client {
    /// Begins to join, at once. `identity` is this machine's WireGuard key, which the embedder has stored. A machine
    /// that joins again with the same key gets the same lease.
    ///
    /// # Errors
    /// [`JoinError::BadKey`].
    pub fn new(token: Token, identity: StaticSecret, now: Now) -> Result<Self, JoinError> {
        let joiner = Joiner { public_key: identity.public_key(), name: None, ephemeral: false, member: false };
        let credential = match token {
            Token::Invite(invite) => Credential::Invite(invite),
            Token::Code(code) => Credential::Secret(WindowSecret::Code(code)),
            Token::Passphrase(passphrase) => Credential::Secret(WindowSecret::Passphrase(passphrase)),
        };
        let maker = match &credential {
            Credential::Invite(invite) => {
                // These checks come before any message: the key must not be of low order, and not be our own.
                let own = *invite.server() == joiner.public_key;
                identity.diffie_hellman(invite.server()).ok().filter(|_| !own).ok_or(JoinError::BadKey)?;
                Maker::new(&invite::LABELS, invite.server())
            }
            Credential::Secret(secret) => Maker::new(&pake::LABELS, &secret.mac_key()),
        };
        Ok(Self {
            identity,
            joiner,
            credential,
            maker,
            kem: Kem::default(),
            timestamp: None,
            stage: Stage::Begin,
            tries: 0,
            next: now.instant,
        })
    }

    /// Sets the machine's name, which is sent to the server.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Option<String>>) -> Self {
        self.joiner.name = name.into();
        self
    }

    /// Asks the server to end the lease when this machine is silent for long.
    #[must_use]
    pub fn with_ephemeral(mut self, ephemeral: bool) -> Self {
        self.joiner.ephemeral = ephemeral;
        self
    }

    /// Tells the server that this machine can be a member of a network, and not only the server's peer:
    /// [`Joined::network`].
    #[must_use]
    pub fn with_member(mut self, member: bool) -> Self {
        self.joiner.member = member;
        self
    }

    /// Uses this implementation of ML-KEM instead of the default one.
    #[must_use]
    pub fn with_kem(self, kem: Kem) -> Self {
        Self { kem, ..self }
    }

    /// The datagram to send now, if one is due.
    ///
    /// # Errors
    /// [`JoinError::NotAccepted`] when the server answered the first message of a code or passphrase, but not the proof
    /// of it; [`JoinError::NotApproved`] when it stopped answering while it waited for an administrator. The error is
    /// returned once. After that the client is over.
    pub fn poll(&mut self, now: Now, rng: &mut impl CryptoRng) -> Result<Option<Vec<u8>>, JoinError> {
        if now.instant < self.next || matches!(self.stage, Stage::Over) {
            return Ok(None);
        }
        let waiting = match &self.stage {
            Stage::Proving { waiting: false, .. } if self.tries >= PROOF_TRIES => {
                return self.fail(JoinError::NotAccepted);
            }
            Stage::Proving { waiting: true, .. } if self.tries >= APPROVAL_TRIES => {
                return self.fail(JoinError::NotApproved);
            }
            Stage::Claiming(_) if self.tries >= CLAIM_TRIES => {
                self.enter(Stage::Begin, now.instant);
                false
            }
            Stage::Proving { waiting, .. } => *waiting,
            _ => false,
        };
        if matches!(self.stage, Stage::Begin) {
            self.begin(now, rng)?;
        }
        let (mut message, signed, longest) = match &self.stage {
            Stage::Initiated(initiated) => (initiated.message.clone(), true, LONGEST_PAUSE),
            Stage::Sharing(shared) => (shared.message.clone(), true, LONGEST_PAUSE),
            Stage::Proving { proving, .. } => (proving.message.clone(), false, SESSION_PAUSE),
            Stage::Claiming(claiming) => (claiming.message.clone(), false, SESSION_PAUSE),
            Stage::Begin | Stage::Over => return Ok(None),
        };
        if signed {
            self.maker.sign(&mut message, now.instant);
        }
        let pause = if waiting { APPROVAL_PAUSE } else { (FIRST_RETRY * 2_u32.pow(self.tries.min(8))).min(longest) };
        self.next = now.instant + jittered(pause, rng);
        self.tries = self.tries.saturating_add(1);
        Ok(Some(message))
    }

    /// The time at which [`Client::poll`] has something to send; `None` when the client is over.
    pub fn deadline(&self) -> Option<Instant> {
        (!matches!(self.stage, Stage::Over)).then_some(self.next)
    }

    /// Takes a datagram from any source. Only an authentic datagram changes the client's state.
    pub fn handle(&mut self, datagram: &[u8], now: Now, rng: &mut impl CryptoRng) -> Heard {
        let stage = core::mem::replace(&mut self.stage, Stage::Over);
        match (Message::parse(datagram), stage) {
            (Some(Message::Cookie(cookie)), stage) => {
                self.stage = stage;
                self.take_cookie(&cookie, now)
            }
            (Some(Message::Response(response)), Stage::Initiated(initiated)) => {
                match initiated.finish(&response, datagram) {
                    Ok((keys, sender, Some(greeting))) => {
                        self.greeted(&keys, sender, response.session, greeting, now, rng)
                    }
                    Ok((.., None)) => Heard::Failed(JoinError::Unreadable),
                    Err(initiated) => self.stay(Stage::Initiated(initiated)),
                }
            }
            (Some(Message::ShareReply(reply)), Stage::Sharing(shared)) if reply.receiver == shared.sender() => {
                match shared.prove(&reply, datagram) {
                    Ok(proving) => {
                        self.enter(Stage::Proving { proving: Box::new(proving), waiting: false }, now.instant);
                        Heard::Progress
                    }
                    Err(_) => {
                        // No genuine server sends such a share. The exchange is used up; the next one is a new one.
                        self.stage = Stage::Begin;
                        Heard::Nothing
                    }
                }
            }
            (Some(Message::Welcome(welcome)), Stage::Proving { proving, waiting })
                if welcome.receiver == proving.sender =>
            {
                let header = &datagram[..datagram.len() - welcome.text.len() - welcome.tag.len()];
                let text = open(proving.keys.to_client(), welcome.counter, header, welcome.text, welcome.tag);
                let session = session_of(&proving.message);
                match (text.map(|text| Greeting::read(&text)), session) {
                    (Some(None), _) => Heard::Failed(JoinError::Unreadable),
                    (Some(Some(Greeting::Wait)), _) => self.wait(proving),
                    (Some(Some(greeting)), Some(session)) => {
                        self.greeted(&proving.keys, proving.sender, session, greeting, now, rng)
                    }
                    _ => self.stay(Stage::Proving { proving, waiting }),
                }
            }
            (Some(Message::Grant(grant)), Stage::Claiming(claiming)) if grant.receiver == claiming.sender => {
                self.granted(claiming, &grant, datagram)
            }
            (_, stage) => self.stay(stage),
        }
    }

    /// Writes the first message of a new exchange.
    fn begin(&mut self, now: Now, rng: &mut impl CryptoRng) -> Result<(), JoinError> {
        let stage = match &self.credential {
            Credential::Invite(invite) => {
                let timestamp = Timestamp::after(self.timestamp, now.unix);
                self.timestamp = Some(timestamp);
                match invite::initiate(invite, &self.identity, &self.joiner, timestamp, rng) {
                    Ok(initiated) => Stage::Initiated(initiated),
                    Err(_) => return self.fail(JoinError::BadKey).map(|_| ()),
                }
            }
            Credential::Secret(secret) => Stage::Sharing(Box::new(pake::share(secret, &self.joiner, rng))),
        };
        self.enter(stage, now.instant);
        Ok(())
    }

    /// An authentic cookie is used at once, in a repetition of the message that it answers.
    fn take_cookie(&mut self, cookie: &Cookie<'_>, now: Now) -> Heard {
        let index = match &self.stage {
            Stage::Initiated(initiated) => wire::cookie_index(initiated.sender()),
            Stage::Sharing(shared) => wire::cookie_index(&shared.sender()),
            _ => return Heard::Nothing,
        };
        let accepted = cookie.receiver() == index
            && cookie.with_core(|reply| self.maker.accept(reply, now.instant)).unwrap_or(false);
        if !accepted {
            return Heard::Nothing;
        }
        self.next = now.instant;
        Heard::Progress
    }

    /// The greeting is authentic: it has the server's settings or the reason of a refusal.
    fn greeted(
        &mut self,
        keys: &Keys,
        sender: Index,
        session: Index,
        greeting: Greeting,
        now: Now,
        rng: &mut impl CryptoRng,
    ) -> Heard {
        let (server, config) = match greeting {
            Greeting::Settings(server, config) => (server, config),
            Greeting::Refused(error) => return Heard::Failed(error),
            // This does not answer a claim. The next message asks again.
            Greeting::Wait => {
                self.enter(Stage::Begin, now.instant);
                return Heard::Nothing;
            }
        };
        let pinned = match &self.credential {
            Credential::Invite(invite) => *invite.server() == server,
            Credential::Secret(_) => server != self.joiner.public_key,
        };
        let Some(keys) = keys.claim(&self.identity, &server).ok().filter(|_| pinned) else {
            return Heard::Failed(JoinError::BadKey);
        };
        let (secret, key) = self.kem.generate(rng);
        let mut message = wire::build(CLAIM, &[&session]);
        seal(keys.key(), 0, &mut message, &key);
        let claiming = Claiming { sender, keys, secret, server, config, message };
        self.enter(Stage::Claiming(Box::new(claiming)), now.instant);
        Heard::Progress
    }

    fn wait(&mut self, proving: Box<Proving>) -> Heard {
        let code = proving.keys.approval_code(&proving.proof_text);
        // The server has answered, so the count of questions restarts. The interval between questions stays.
        self.tries = 0;
        self.stage = Stage::Proving { proving, waiting: true };
        Heard::Waiting(code)
    }

    fn granted(&mut self, claiming: Box<Claiming>, grant: &Grant<'_>, datagram: &[u8]) -> Heard {
        let shared = claiming.secret.decapsulate(grant.ciphertext);
        let keys = claiming.keys.grant(&claiming.message, grant.ciphertext, &shared);
        let header = &datagram[..datagram.len() - grant.text.len() - grant.tag.len()];
        let Some(text) = open(&keys.grant, 0, header, grant.text, grant.tag) else {
            return self.stay(Stage::Claiming(claiming));
        };
        match GrantText::read(&text) {
            Some(text @ GrantText { decision: Decision::Accepted, .. }) => {
                let network = text.network.filter(|_| self.joiner.member);
                Heard::Joined(Box::new(Joined { network, ..joined(&claiming, text) }))
            }
            Some(GrantText { decision: Decision::Refused(error), .. }) => Heard::Failed(error),
            Some(GrantText { decision: Decision::Wait, .. }) | None => Heard::Failed(JoinError::Unreadable),
        }
    }

    fn enter(&mut self, stage: Stage, now: Instant) {
        self.stage = stage;
        self.tries = 0;
        self.next = now;
    }

    fn stay(&mut self, stage: Stage) -> Heard {
        self.stage = stage;
        Heard::Nothing
    }

    fn fail(&mut self, error: JoinError) -> Result<Option<Vec<u8>>, JoinError> {
        self.stage = Stage::Over;
        Err(error)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Begin => "begin",
            Stage::Initiated(_) => "initiated",
            Stage::Sharing(_) => "sharing",
            Stage::Proving { .. } => "proving",
            Stage::Claiming(_) => "claiming",
            Stage::Over => "over",
        };
        f.debug_struct("Client").field("public_key", &self.joiner.public_key).field("stage", &stage).finish()
    }
}

/// The session's index in a message of our own.
fn session_of(message: &[u8]) -> Option<Index> {
    match Message::parse(message)? {
        Message::Proof(proof) => Some(proof.session),
        _ => None,
    }
}

fn joined(claiming: &Claiming, text: GrantText) -> Joined {
    let config = claiming.config.clone();
    let mut routes = config.routes;
    // Joiners always route the server's own addresses into the tunnel.
    for address in &config.addresses {
        if !routes.iter().any(|route| route.contains(address)) {
            routes.push(IpNet::from(*address));
        }
    }
    let v4 = text.v4.map(|address| IpNet::from(core::net::IpAddr::V4(address)));
    let v6 = text.v6.map(|address| IpNet::from(core::net::IpAddr::V6(address)));
    Joined {
        server: claiming.server,
        preshared_key: text.preshared_key,
        addresses: v4.into_iter().chain(v6).collect(),
        routes,
        server_addresses: config.addresses,
        dns: config.dns,
        search: config.search,
        mtu: config.mtu,
        port: config.port,
        keepalive: config.keepalive,
        expires: text.expires.map(Duration::from_secs),
        ephemeral: text.ephemeral,
        network: None,
    }
}

/// A random duration of 75 % to 125 % of `pause`. Clients that started together, for example after a power cut, spread
/// out over time.
fn jittered(pause: Duration, rng: &mut impl CryptoRng) -> Duration {
    let mut byte = [0];
    rng.fill_bytes(&mut byte);
    pause * 3 / 4 + pause / 2 * u32::from(byte[0]) / 256
}
