//! Protocol A: the Noise_IK handshake of `rustguard_core::noise` with other labels. The initiator's static key is the
//! one-time key of an invite. The responder's static key is the server's WireGuard key.
use crate::{
    payload::{Greeting, Joiner, PROOF_OF_KEY, ProofOfKey},
    schedule::Keys,
    token::Invite,
    wire::{self, INITIATION, Index, Initiation, RESPONSE, Response},
};
use rand_core::CryptoRng;
use rustguard_core::{
    noise::{self, Claimed, Labels, Received, Refused, ResponseFields},
    tai64n::Timestamp,
    wire::MACS_LEN,
};
use rustguard_crypto::{
    hash,
    x25519::{PublicKey, StaticSecret},
};
use zeroize::{Zeroize as _, Zeroizing};

/// These labels separate this handshake from WireGuard's between the same keys.
pub(crate) const LABELS: Labels = Labels {
    construction: b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s",
    identifier: b"RustGuard enrolment v1, invite",
    mac1: b"rge-mac1",
    cookie: b"rge-cook",
};

/// The pattern mixes in a preshared key. The server stores only public halves of invites, so the key is zero.
const NO_PRESHARED_KEY: [u8; 32] = [0; 32];

/// The joiner's state while it waits for the answer.
pub(crate) struct Initiated {
    noise: noise::Initiated,
    key: StaticSecret,
    sender: Index,
    /// The message. Its MACs are still zero.
    pub(crate) message: Vec<u8>,
}

/// Writes the first message, on behalf of the machine whose WireGuard key is `identity`.
pub(crate) fn initiate(
    invite: &Invite,
    identity: &StaticSecret,
    joiner: &Joiner,
    timestamp: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<Box<Initiated>, Refused> {
    let key = invite.secret();
    let static_static = key.diffie_hellman(invite.server())?;
    let mut sender = [0; 8];
    rng.fill_bytes(&mut sender);
    let ephemeral = secret(rng);
    let shared = identity.diffie_hellman(invite.server())?;
    let mut text =
        joiner.initiation_text(&timestamp.0, |text| proof_of_key(shared.as_bytes(), &ephemeral.public_key().0, text));
    let (noise, fields) =
        noise::initiate(&LABELS, &key.public_key(), invite.server(), &static_static, ephemeral, &mut text)?;
    let macs = [0; MACS_LEN];
    let message =
        wire::build(INITIATION, &[&sender, &fields.ephemeral.0, &fields.static_key, &text, &fields.tag, &macs]);
    Ok(Box::new(Initiated { noise, key, sender, message }))
}

impl Initiated {
    /// Reads the answer; `datagram` is the whole message. A forged answer changes nothing and returns `self`. The
    /// greeting is `None` if it is authentic but malformed.
    pub(crate) fn finish(
        self: Box<Self>,
        response: &Response<'_>,
        datagram: &[u8],
    ) -> Result<(Keys, Index, Option<Greeting>), Box<Self>> {
        if response.receiver != self.sender {
            return Err(self);
        }
        let mut text = response.text.to_vec();
        let fields = ResponseFields { ephemeral: PublicKey(*response.ephemeral), tag: *response.tag };
        let Ok(answer) = self.noise.verify(&self.key, &NO_PRESHARED_KEY, &fields, &mut text) else { return Err(self) };
        let greeting = Greeting::read(&text);
        let keys = self.noise.finish(answer);
        let keys = Keys::from_noise(&keys, wire::without_macs(&self.message), datagram);
        Ok((keys, self.sender, greeting))
    }

    /// The index by which the server addresses us.
    pub(crate) fn sender(&self) -> &Index {
        &self.sender
    }
}

/// The server's first step, which costs one multiplication. The sender claims to hold the invite with this public half.
pub(crate) fn read(identity: &StaticSecret, initiation: &Initiation<'_>) -> Result<Claimed, Refused> {
    Claimed::read(&LABELS, identity, &PublicKey(*initiation.ephemeral), initiation.static_key)
}

/// The server's second step, after another multiplication. It shows that the sender holds the invite, and decrypts the
/// joiner's text.
pub(crate) fn verify(
    claimed: Claimed,
    identity: &StaticSecret,
    initiation: &Initiation<'_>,
) -> Result<(Received, Zeroizing<Vec<u8>>), Refused> {
    let static_static = identity.diffie_hellman(claimed.peer())?;
    let mut text = Zeroizing::new(initiation.text.to_vec());
    let received = claimed.verify(&static_static, &mut text, initiation.tag)?;
    Ok((received, text))
}

/// Whether the machine with the named WireGuard key made the initiation, and not another holder of the invite.
pub(crate) fn proves_key(
    identity: &StaticSecret,
    initiation: &Initiation<'_>,
    joiner: &PublicKey,
    proof: ProofOfKey<'_>,
) -> bool {
    let Ok(shared) = identity.diffie_hellman(joiner) else { return false };
    hash::ct_eq(&proof_of_key(shared.as_bytes(), initiation.ephemeral, proof.text), proof.mac)
}

/// The proof is bound to the ephemeral key, so it cannot be reused in another message.
fn proof_of_key(shared: &[u8; 32], ephemeral: &[u8; 32], text: &[u8]) -> [u8; PROOF_OF_KEY] {
    let mut key = hash::hmac(shared, &[b"RustGuard enrolment v1 joiner's key"]);
    let proof = hash::mac(&key, &[ephemeral, text]);
    key.zeroize();
    proof
}

/// Writes the answer; `datagram` is the whole initiation.
pub(crate) fn respond(
    received: Received,
    datagram: &[u8],
    receiver: &Index,
    session: &Index,
    greeting: &[u8],
    rng: &mut impl CryptoRng,
) -> Result<(Keys, Vec<u8>), Refused> {
    let mut text = greeting.to_vec();
    let (fields, keys) = received.respond(&NO_PRESHARED_KEY, secret(rng), &mut text)?;
    let answer = wire::build(RESPONSE, &[receiver, session, &fields.ephemeral.0, &text, &fields.tag]);
    let keys = Keys::from_noise(&keys, wire::without_macs(datagram), &answer);
    Ok((keys, answer))
}

fn secret(rng: &mut impl CryptoRng) -> StaticSecret {
    let mut bytes = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *bytes);
    StaticSecret::from_bytes(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::ServerConfig, payload, wire::Message};
    use core::time::Duration;
    use rand::{SeedableRng as _, rngs::StdRng};

    fn node() -> StaticSecret {
        StaticSecret::from_bytes([4; 32])
    }

    fn joiner() -> Joiner {
        Joiner { public_key: node().public_key(), name: Some("node".to_owned()), ephemeral: false, member: false }
    }

    fn initiation(datagram: &[u8]) -> Initiation<'_> {
        let Some(Message::Initiation(initiation)) = Message::parse(datagram) else { panic!("an initiation") };
        initiation
    }

    #[test]
    fn both_sides_get_the_same_keys_and_know_each_other() {
        let mut rng = StdRng::seed_from_u64(1);
        let identity = secret(&mut rng);
        let invite = Invite::generate(identity.public_key(), None, &mut rng).expect("no endpoint");
        let initiated = initiate(&invite, &node(), &joiner(), Timestamp::of(Duration::from_secs(9)), &mut rng)
            .expect("honest keys");
        let datagram = initiated.message.clone();

        let message = initiation(&datagram);
        let claimed = read(&identity, &message).expect("authentic");
        assert_eq!(*claimed.peer(), invite.public_key());
        let (received, text) = verify(claimed, &identity, &message).expect("authentic");
        let (timestamp, who, proof) = Joiner::from_initiation(&text).expect("a joiner");
        assert_eq!((timestamp, who), (Timestamp::of(Duration::from_secs(9)).0, joiner()));
        // The proof holds for this key only, and not for another ephemeral key or another text.
        assert!(proves_key(&identity, &message, &node().public_key(), proof));
        assert!(!proves_key(&identity, &message, &invite.public_key(), proof));
        assert!(!proves_key(&identity, &message, &PublicKey([0; 32]), proof));
        let elsewhere = Initiation { ephemeral: &[7; 32], ..initiation(&datagram) };
        assert!(!proves_key(&identity, &elsewhere, &node().public_key(), proof));
        assert!(!proves_key(&identity, &message, &node().public_key(), ProofOfKey { text: &proof.text[1..], ..proof }));
        assert!(!proves_key(&identity, &message, &node().public_key(), ProofOfKey { mac: &[0; 16], ..proof }));
        let greeting = payload::settings(&identity.public_key(), &ServerConfig::default()).expect("fits");
        let (theirs, answer) =
            respond(received, &datagram, &message.sender, &[7; 8], &greeting, &mut rng).expect("honest keys");

        let mut initiated = initiated;
        for at in 4..answer.len() {
            let mut forged = answer.clone();
            forged[at] ^= 1;
            let Some(Message::Response(response)) = Message::parse(&forged) else { panic!("a response") };
            match initiated.finish(&response, &forged) {
                Err(back) => initiated = back,
                // The session's index is not part of Noise but of the transcript, so the keys differ.
                Ok((ours, ..)) => {
                    assert!((12..20).contains(&at), "byte {at}");
                    assert_ne!(ours.to_server(), theirs.to_server());
                    return;
                }
            }
        }
        unreachable!("a changed index is noticed by the keys only");
    }

    #[test]
    fn the_answer_opens_with_what_was_kept() {
        let mut rng = StdRng::seed_from_u64(2);
        let identity = secret(&mut rng);
        let invite = Invite::generate(identity.public_key(), None, &mut rng).expect("no endpoint");
        let initiated =
            initiate(&invite, &node(), &joiner(), Timestamp::of(Duration::ZERO), &mut rng).expect("honest keys");
        let datagram = initiated.message.clone();
        let message = initiation(&datagram);
        let (received, _) = verify(read(&identity, &message).expect("ok"), &identity, &message).expect("authentic");
        let greeting = payload::settings(&identity.public_key(), &ServerConfig::default()).expect("fits");
        let (theirs, answer) =
            respond(received, &datagram, &message.sender, &[7; 8], &greeting, &mut rng).expect("honest keys");
        let Some(Message::Response(response)) = Message::parse(&answer) else { panic!("a response") };
        let Ok((ours, _, greeting)) = initiated.finish(&response, &answer) else { panic!("the true answer") };
        assert_eq!((ours.to_server(), ours.to_client()), (theirs.to_server(), theirs.to_client()));
        assert_eq!(greeting, Some(Greeting::Settings(identity.public_key(), ServerConfig::default())));
    }

    #[test]
    fn another_seed_another_server_and_wireguards_labels_are_nobody() {
        let mut rng = StdRng::seed_from_u64(3);
        let identity = secret(&mut rng);
        let other = secret(&mut rng);
        let invite = Invite::generate(identity.public_key(), None, &mut rng).expect("no endpoint");
        let initiated =
            initiate(&invite, &node(), &joiner(), Timestamp::of(Duration::ZERO), &mut rng).expect("honest keys");
        let message = initiation(&initiated.message);
        assert!(read(&other, &message).is_err(), "meant for another server");
        let wireguard = Claimed::read(&noise::WIREGUARD, &identity, &PublicKey(*message.ephemeral), message.static_key);
        assert!(wireguard.is_err());
        // A low-order ephemeral key.
        let low = Initiation { ephemeral: &[0; 32], ..initiation(&initiated.message) };
        assert!(matches!(read(&identity, &low), Err(Refused::LowOrder)));
        let bad = Invite::generate(PublicKey([0; 32]), None, &mut rng).expect("no endpoint");
        assert!(initiate(&bad, &node(), &joiner(), Timestamp::of(Duration::ZERO), &mut rng).is_err());
    }
}
