//! MAC1, MAC2 and cookies: which senders may cost us computation, and when they must first prove their address
//! (whitepaper, sections 5.4.4 and 5.4.7).
//!
//! [`Checker`] is the receiving side, keyed by our public key; [`Maker`] is the sending side, keyed by the peer's. Both
//! work on any message that ends with the two MACs, and with any [`Labels`]. Threads that sort messages before a
//! [`Node`](crate::node::Node) handles them use a [`Screen`].
use crate::{
    noise::Labels,
    peer::PeerId,
    sync::Arc,
    time::Instant,
    wire::{COOKIE_REPLY_LEN, CookieReply, MACS_LEN},
};
use core::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use rand_core::CryptoRng;
use rustguard_crypto::{aead, hash, x25519::PublicKey};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// How long the secret of our cookies is used, and how long a cookie from a peer is used.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(120);

/// The source of a message, to which its answer is sent. A cookie proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// This address and port.
    Address(SocketAddr),
    /// Another peer forwarded it: see [`forward`](crate::forward).
    Peer {
        /// The peer that forwarded it, and in whose session it came.
        relay: PeerId,
        /// The original sender, according to the relay.
        peer: PeerId,
    },
}

impl From<SocketAddr> for Origin {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// The secret that our cookies are made of. It outlives the keys of the [`Checker`]: a cookie proves an address,
/// independent of our key.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Secret {
    bytes: [u8; 32],
    #[zeroize(skip)]
    since: Instant,
}

impl Secret {
    /// A fresh secret.
    pub fn new(now: Instant, rng: &mut impl CryptoRng) -> Self {
        let mut secret = Self { bytes: [0; 32], since: now };
        rng.fill_bytes(&mut secret.bytes);
        secret
    }

    /// Replaces the secret if it has expired: to be called before each [`Checker::reply`].
    pub fn refresh(&mut self, now: Instant, rng: &mut impl CryptoRng) {
        if self.expired(now) {
            *self = Self::new(now, rng);
        }
    }

    pub(crate) fn expired(&self, now: Instant) -> bool {
        now.since(self.since) >= COOKIE_LIFETIME
    }

    fn cookie(&self, from: Origin) -> [u8; 16] {
        let from = match from {
            Origin::Address(address) => address,
            // 8 bytes, while addresses have 6 and 18: no cookie is valid for two places.
            Origin::Peer { relay, peer } => {
                return hash::mac(&self.bytes, &[&relay.0.to_be_bytes(), &peer.0.to_be_bytes()]);
            }
        };
        let port = from.port().to_be_bytes();
        match from.ip() {
            IpAddr::V4(ip) => hash::mac(&self.bytes, &[&ip.octets(), &port]),
            IpAddr::V6(ip) => hash::mac(&self.bytes, &[&ip.octets(), &port]),
        }
    }
}

/// Checks the MACs of received messages and gives out cookies.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Checker {
    mac1_key: [u8; 32],
    cookie_key: [u8; 32],
}

impl Checker {
    /// For messages to the owner of `public_key`.
    pub fn new(labels: &Labels, public_key: &PublicKey) -> Self {
        Self {
            mac1_key: hash::hash(&[labels.mac1, &public_key.0]),
            cookie_key: hash::hash(&[labels.cookie, &public_key.0]),
        }
    }

    /// Whether the sender knows our public key. False for a message that is shorter than its MACs.
    pub fn mac1_is_valid(&self, message: &[u8]) -> bool {
        split(message).is_some_and(|(covered, mac1, _)| hash::ct_eq(mac1, &hash::mac(&self.mac1_key, &[covered])))
    }

    /// Whether the sender has a cookie for the address *and* port it sends from. Does not check MAC1.
    pub fn mac2_is_valid(&self, secret: &Secret, from: impl Into<Origin>, message: &[u8], now: Instant) -> bool {
        let from = from.into();
        let valid = |(covered, mac1, mac2): (&[u8], &[u8; 16], &[u8; 16])| {
            hash::ct_eq(mac2, &hash::mac(&secret.cookie(from), &[covered, mac1]))
        };
        !secret.expired(now) && split(message).is_some_and(valid)
    }

    /// Answers a message with valid MAC1 from index `sender` with a cookie for its source. The `secret` must be
    /// [fresh](Secret::refresh): a cookie of an expired secret is useless.
    ///
    /// # Panics
    /// When the message is shorter than its MACs. A message with a valid MAC1 is not.
    pub fn reply(
        &self,
        secret: &Secret,
        from: impl Into<Origin>,
        sender: u32,
        message: &[u8],
        rng: &mut impl CryptoRng,
    ) -> [u8; COOKIE_REPLY_LEN] {
        let (_, mac1, _) = split(message).expect("a message with a valid MAC1 has both MACs");
        let mut nonce = [0; 24];
        rng.fill_bytes(&mut nonce);
        let mut cookie = secret.cookie(from.into());
        let tag = aead::xseal(&self.cookie_key, &nonce, mac1, &mut cookie);
        CookieReply::build(sender, &nonce, &cookie, &tag)
    }
}

/// The result of checking the MACs of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// MAC1 is wrong: the sender does not know our public key.
    Invalid,
    /// MAC1 is right, MAC2 is not: the source address may be spoofed.
    Unproven,
    /// Both are right: the sender receives what is sent to its address and port.
    Proven,
}

/// Checks the MACs of initiations and responses, on any thread. [`Action::SetScreen`](crate::node::Action::SetScreen)
/// delivers the current one.
#[derive(Clone)]
pub struct Screen {
    pub(crate) checker: Arc<Checker>,
    /// For messages to the second key of a node that changes its key.
    pub(crate) second: Option<Arc<Checker>>,
    pub(crate) secret: Arc<Secret>,
}

impl Screen {
    /// Checks the MACs of a message from `from`. Costs one or two runs of BLAKE2s, about a microsecond.
    pub fn judge(&self, from: impl Into<Origin>, message: &[u8], now: Instant) -> Standing {
        let is_ours = |checker: &Arc<Checker>| checker.mac1_is_valid(message);
        if !is_ours(&self.checker) && !self.second.as_ref().is_some_and(is_ours) {
            Standing::Invalid
        // A sender without a cookie leaves MAC2 at zero (whitepaper §5.4.4).
        } else if message.last_chunk() != Some(&[0; 16]) && self.checker.mac2_is_valid(&self.secret, from, message, now)
        {
            Standing::Proven
        } else {
            Standing::Unproven
        }
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

/// Writes the MACs of messages to one peer and keeps the cookie that the peer gave us.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Maker {
    mac1_key: [u8; 32],
    cookie_key: [u8; 32],
    cookie: [u8; 16],
    #[zeroize(skip)]
    cookie_since: Option<Instant>,
    /// MAC1 of the last message: a cookie reply is bound to it. None once one was accepted.
    last_mac1: Option<[u8; 16]>,
}

impl Maker {
    /// For messages to the owner of `public_key`.
    pub fn new(labels: &Labels, public_key: &PublicKey) -> Self {
        Self {
            mac1_key: hash::hash(&[labels.mac1, &public_key.0]),
            cookie_key: hash::hash(&[labels.cookie, &public_key.0]),
            cookie: [0; 16],
            cookie_since: None,
            last_mac1: None,
        }
    }

    /// Fills in the last 32 bytes of `message`: MAC1, and MAC2 if there is a cookie that is still valid.
    ///
    /// # Panics
    /// When the message is shorter than its MACs.
    pub fn sign(&mut self, message: &mut [u8], now: Instant) {
        let covered = message.len().checked_sub(MACS_LEN).expect("the message has room for its MACs");
        let (covered, macs) = message.split_at_mut(covered);
        let (mac1, mac2) = macs.split_at_mut(16);
        let value = hash::mac(&self.mac1_key, &[covered]);
        mac1.copy_from_slice(&value);
        self.last_mac1 = Some(value);
        if self.cookie_since.is_some_and(|since| now.since(since) < COOKIE_LIFETIME) {
            mac2.copy_from_slice(&hash::mac(&self.cookie, &[covered, mac1]));
        }
    }

    /// Keeps the cookie of an authentic reply to our last message, for later messages. False: the reply is not
    /// authentic.
    pub fn accept(&mut self, reply: &CookieReply<'_>, now: Instant) -> bool {
        let Some(mac1) = self.last_mac1 else { return false };
        let mut cookie = *reply.cookie();
        let authentic = aead::xopen(&self.cookie_key, reply.nonce(), &mac1, &mut cookie, reply.tag()).is_ok();
        if authentic {
            self.cookie = cookie;
            self.cookie_since = Some(now);
            // One reply per message: a second one is a replay.
            self.last_mac1 = None;
        }
        authentic
    }
}

/// The bytes that MAC1 covers, MAC1, MAC2.
fn split(message: &[u8]) -> Option<(&[u8], &[u8; 16], &[u8; 16])> {
    let (rest, mac2) = message.split_last_chunk()?;
    let (covered, mac1) = rest.split_last_chunk()?;
    Some((covered, mac1, mac2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        noise::WIREGUARD,
        wire::{Message, Response},
    };
    use rand::{SeedableRng, rngs::StdRng};

    const AT: Instant = Instant::from_nanos(1_000_000_000);

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn signed(maker: &mut Maker, now: Instant) -> [u8; crate::wire::RESPONSE_LEN] {
        let mut message = Response::build(7, 8, &[1; 32], &[2; 16]);
        maker.sign(&mut message, now);
        message
    }

    #[test]
    fn a_cookie_is_bound_to_address_and_port() {
        let mut rng = StdRng::seed_from_u64(6);
        let key = PublicKey([9; 32]);
        let (checker, mut maker) = (Checker::new(&WIREGUARD, &key), Maker::new(&WIREGUARD, &key));
        let secret = Secret::new(AT, &mut rng);
        let from = address("192.0.2.1:1000");

        let message = signed(&mut maker, AT);
        assert!(checker.mac1_is_valid(&message) && !checker.mac2_is_valid(&secret, from, &message, AT));
        let reply = checker.reply(&secret, from, 7, &message, &mut rng);
        let Some(Message::CookieReply(reply)) = Message::parse(&reply) else { panic!("a cookie reply") };
        assert_eq!(reply.receiver(), 7);
        assert!(maker.accept(&reply, AT) && !maker.accept(&reply, AT), "taken once");

        let message = signed(&mut maker, AT);
        assert!(checker.mac2_is_valid(&secret, from, &message, AT));
        assert!(!checker.mac2_is_valid(&secret, address("192.0.2.1:1001"), &message, AT));
        assert!(!checker.mac2_is_valid(&secret, address("192.0.2.2:1000"), &message, AT));
        assert!(!checker.mac2_is_valid(&secret, address("[2001:db8::1]:1000"), &message, AT));
    }

    #[test]
    fn a_screen_tells_strangers_unproven_and_proven_sources_apart() {
        let mut rng = StdRng::seed_from_u64(61);
        let key = PublicKey([9; 32]);
        let (checker, mut maker) = (Arc::new(Checker::new(&WIREGUARD, &key)), Maker::new(&WIREGUARD, &key));
        let secret = Arc::new(Secret::new(AT, &mut rng));
        let screen = Screen { checker, second: None, secret };
        let from = address("192.0.2.1:1000");

        let mut message = signed(&mut maker, AT);
        assert_eq!(screen.judge(from, &message, AT), Standing::Unproven);
        let reply = screen.checker.reply(&screen.secret, from, 7, &message, &mut rng);
        let Some(Message::CookieReply(reply)) = Message::parse(&reply) else { panic!("a cookie reply") };
        assert!(maker.accept(&reply, AT));
        message[91] = 1;
        assert_eq!(screen.judge(from, &message, AT), Standing::Unproven, "an invented MAC2");
        let mut message = signed(&mut maker, AT);
        assert_eq!(screen.judge(from, &message, AT), Standing::Proven);
        assert_eq!(screen.judge(address("192.0.2.1:1001"), &message, AT), Standing::Unproven);
        assert_eq!(screen.judge(from, &message, AT + COOKIE_LIFETIME), Standing::Unproven);
        message[5] ^= 1;
        assert_eq!(screen.judge(from, &message, AT), Standing::Invalid);
        assert_eq!(screen.judge(from, &message[..31], AT), Standing::Invalid, "too short for MACs");
    }

    #[test]
    fn cookies_and_secrets_live_120_seconds() {
        let mut rng = StdRng::seed_from_u64(7);
        let key = PublicKey([9; 32]);
        let (checker, mut maker) = (Checker::new(&WIREGUARD, &key), Maker::new(&WIREGUARD, &key));
        let secret = Secret::new(AT, &mut rng);
        let from = address("192.0.2.1:1000");
        let message = signed(&mut maker, AT);
        let reply = checker.reply(&secret, from, 7, &message, &mut rng);
        let Some(Message::CookieReply(reply)) = Message::parse(&reply) else { panic!("a cookie reply") };
        assert!(maker.accept(&reply, AT));

        let nearly = AT + COOKIE_LIFETIME.checked_sub(Duration::from_nanos(1)).expect("120 s are longer");
        let message = signed(&mut maker, nearly);
        assert!(checker.mac2_is_valid(&secret, from, &message, nearly));
        assert!(!checker.mac2_is_valid(&secret, from, &message, AT + COOKIE_LIFETIME), "the secret is too old");
        assert_eq!(signed(&mut maker, AT + COOKIE_LIFETIME)[76..], [0; 16], "the cookie is too old");
    }

    #[test]
    fn a_reply_to_another_message_or_from_another_key_is_refused() {
        let mut rng = StdRng::seed_from_u64(8);
        let key = PublicKey([9; 32]);
        let mut maker = Maker::new(&WIREGUARD, &key);
        let message = signed(&mut maker, AT);
        let mut other = message;
        other[60] ^= 1;
        let from = address("192.0.2.1:1000");
        for (key, message) in [(key, other), (PublicKey([8; 32]), message)] {
            let secret = Secret::new(AT, &mut rng);
            let reply = Checker::new(&WIREGUARD, &key).reply(&secret, from, 7, &message, &mut rng);
            let Some(Message::CookieReply(reply)) = Message::parse(&reply) else { panic!("a cookie reply") };
            assert!(!maker.accept(&reply, AT));
        }
    }

    #[test]
    fn short_messages_have_no_macs() {
        let checker = Checker::new(&WIREGUARD, &PublicKey([9; 32]));
        let secret = Secret::new(AT, &mut StdRng::seed_from_u64(9));
        for len in 0..32 {
            assert!(!checker.mac1_is_valid(&[0; 32][..len]));
            assert!(!checker.mac2_is_valid(&secret, address("192.0.2.1:1"), &[0; 32][..len], AT));
        }
    }

    #[test]
    fn a_cookie_for_a_relay_proves_that_relay_and_peer_and_no_address() {
        let (mut rng, key) = (StdRng::seed_from_u64(1), PublicKey([1; 32]));
        let secret = Secret::new(AT, &mut rng);
        let (checker, mut maker) = (Checker::new(&WIREGUARD, &key), Maker::new(&WIREGUARD, &key));
        let through = |relay, peer| Origin::Peer { relay: PeerId(relay), peer: PeerId(peer) };
        let message = signed(&mut maker, AT);
        let reply = checker.reply(&secret, through(1, 2), 7, &message, &mut rng);
        let Some(Message::CookieReply(reply)) = Message::parse(&reply) else { panic!("a cookie reply") };
        assert!(maker.accept(&reply, AT));
        let message = signed(&mut maker, AT);
        let valid = |from: Origin| checker.mac2_is_valid(&secret, from, &message, AT);
        assert!(valid(through(1, 2)));
        for other in
            [through(2, 2), through(1, 3), through(2, 1), address("0.0.0.1:2").into(), address("[::1]:2").into()]
        {
            assert!(!valid(other), "{other:?}");
        }
    }
}
