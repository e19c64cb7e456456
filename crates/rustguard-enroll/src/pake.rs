//! Protocol B: CPace between a joiner and a window, with a code or a passphrase.
use crate::{
    cpace::{CPace, Context, InvalidShare, Message, SHARE_LEN},
    payload::Joiner,
    schedule::{Keys, commitment, seal},
    token::{Code, Passphrase},
    wire::{self, Index, PROOF, PROOF_TEXT, SHARE, SHARE_REPLY, Share, ShareReply},
};
use rand_core::CryptoRng;
use rustguard_core::{noise::Labels, wire::MACS_LEN};
use rustguard_crypto::{hash, x25519::PublicKey};
use zeroize::Zeroizing;

/// The labels for the MACs. This protocol does not use Noise.
pub(crate) const LABELS: Labels =
    Labels { construction: b"", identifier: b"RustGuard enrolment v1, window", mac1: b"rgw-mac1", cookie: b"rgw-cook" };

/// The secret that opens a window.
#[derive(Clone)]
pub(crate) enum WindowSecret {
    Code(Code),
    Passphrase(Passphrase),
}

impl WindowSecret {
    /// The key for the MACs, in the place of a public key. For a code it is only the half that is not secret, because
    /// an attacker can find it from a single packet. For a passphrase it is constant.
    pub(crate) fn mac_key(&self) -> PublicKey {
        PublicKey(match self {
            Self::Code(code) => hash::hash(&[b"RustGuard enrolment v1 window of a code", &code.window()]),
            Self::Passphrase(_) => hash::hash(&[b"RustGuard enrolment v1 window of a passphrase"]),
        })
    }

    /// The part that an attacker would have to guess.
    fn password(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Code(code) => code.secret().to_vec(),
            Self::Passphrase(passphrase) => passphrase.as_bytes().to_vec(),
        })
    }

    /// CPace's channel identifier: the protocol, its version, the roles, the window.
    fn channel(&self) -> Vec<u8> {
        match self {
            Self::Code(code) => {
                [&b"RustGuard enrolment v1, joiner first, server second, code "[..], &code.window()].concat()
            }
            Self::Passphrase(_) => b"RustGuard enrolment v1, joiner first, server second, passphrase".to_vec(),
        }
    }
}

/// The joiner's state while it waits for the server's share.
pub(crate) struct Shared {
    cpace: CPace,
    id: [u8; 16],
    proof_text: [u8; PROOF_TEXT],
    /// The message. Its MACs are still zero.
    pub(crate) message: Vec<u8>,
}

/// Writes the joiner's share, with a commitment to the proof that will follow.
pub(crate) fn share(secret: &WindowSecret, joiner: &Joiner, rng: &mut impl CryptoRng) -> Shared {
    let (mut id, mut nonce) = ([0; 16], [0; 32]);
    rng.fill_bytes(&mut id);
    rng.fill_bytes(&mut nonce);
    let proof_text = joiner.proof_text(&nonce);
    let cpace = CPace::start(&Context { password: &secret.password(), channel: &secret.channel(), session: &id }, rng);
    let message = wire::build(SHARE, &[&id, cpace.share(), &commitment(&proof_text), &[0; MACS_LEN]]);
    Shared { cpace, id, proof_text, message }
}

/// The joiner's state when it has the server's share.
pub(crate) struct Proving {
    pub(crate) keys: Keys,
    pub(crate) sender: Index,
    pub(crate) proof_text: [u8; PROOF_TEXT],
    /// The proof.
    pub(crate) message: Vec<u8>,
}

impl Shared {
    /// The index by which the server addresses us.
    pub(crate) fn sender(&self) -> Index {
        let [a, b, c, d, e, f, g, h, ..] = self.id;
        [a, b, c, d, e, f, g, h]
    }

    /// Takes the server's share and writes the proof; `datagram` is the server's whole message.
    pub(crate) fn prove(self, reply: &ShareReply<'_>, datagram: &[u8]) -> Result<Proving, InvalidShare> {
        let sender = self.sender();
        let data = server_data(&sender, &reply.session);
        let theirs = Message { share: reply.share, data: &data };
        let secret = self.cpace.finish_as_initiator(&self.id, &commitment(&self.proof_text), &theirs)?;
        let keys = Keys::from_pake(&secret, wire::without_macs(&self.message), datagram);
        let mut message = wire::build(PROOF, &[&reply.session]);
        seal(keys.to_server(), 0, &mut message, &self.proof_text);
        Ok(Proving { keys, sender, proof_text: self.proof_text, message })
    }
}

/// Answers a share; `datagram` is its whole message. After this the sender can test one guess.
pub(crate) fn reply(
    secret: &WindowSecret,
    share: &Share<'_>,
    datagram: &[u8],
    session: &Index,
    rng: &mut impl CryptoRng,
) -> Result<(Keys, Index, Vec<u8>), InvalidShare> {
    let context = Context { password: &secret.password(), channel: &secret.channel(), session: share.id };
    let cpace = CPace::start(&context, rng);
    let ours: [u8; SHARE_LEN] = *cpace.share();
    let [a, b, c, d, e, f, g, h, ..] = *share.id;
    let receiver = [a, b, c, d, e, f, g, h];
    let theirs = Message { share: share.share, data: share.commitment };
    let secret = cpace.finish_as_responder(share.id, &server_data(&receiver, session), &theirs)?;
    let answer = wire::build(SHARE_REPLY, &[&receiver, session, &ours]);
    let keys = Keys::from_pake(&secret, wire::without_macs(datagram), &answer);
    Ok((keys, receiver, answer))
}

fn server_data(receiver: &Index, session: &Index) -> [u8; 16] {
    let mut data = [0; 16];
    data[..8].copy_from_slice(receiver);
    data[8..].copy_from_slice(session);
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{schedule::open, wire::Message as Wire};
    use rand::{SeedableRng as _, rngs::StdRng};

    fn joiner() -> Joiner {
        Joiner { public_key: PublicKey([4; 32]), name: None, ephemeral: false, member: false }
    }

    fn passphrase(text: &str) -> WindowSecret {
        WindowSecret::Passphrase(Passphrase::new(text).expect("a passphrase"))
    }

    /// Whether the server can open the joiner's proof.
    fn run(ours: &WindowSecret, theirs: &WindowSecret) -> bool {
        let mut rng = StdRng::seed_from_u64(1);
        let shared = share(ours, &joiner(), &mut rng);
        let datagram = shared.message.clone();
        let Some(Wire::Share(message)) = Wire::parse(&datagram) else { panic!("a share") };
        let (server, receiver, answer) = reply(theirs, &message, &datagram, &[9; 8], &mut rng).expect("a point");
        assert_eq!(receiver, shared.sender());
        let Some(Wire::ShareReply(message)) = Wire::parse(&answer) else { panic!("a share") };
        let proving = shared.prove(&message, &answer).expect("a point");
        let Some(Wire::Proof(proof)) = Wire::parse(&proving.message) else { panic!("a proof") };
        let text = open(server.to_server(), 0, &proving.message[..12], proof.text, proof.tag);
        let code = server.approval_code(&proving.proof_text);
        assert_eq!(text.is_some(), code == proving.keys.approval_code(&proving.proof_text));
        text.is_some()
    }

    #[test]
    fn the_proof_opens_if_the_secrets_are_equal() {
        let mut rng = StdRng::seed_from_u64(2);
        let code = Code::generate(&mut rng);
        assert!(run(&WindowSecret::Code(code.clone()), &WindowSecret::Code(code.clone())));
        assert!(!run(&WindowSecret::Code(Code::generate(&mut rng)), &WindowSecret::Code(code.clone())));
        assert!(run(&passphrase("mysecret"), &passphrase("mysecret")));
        assert!(!run(&passphrase("mysecret"), &passphrase("mySecret")));
        assert!(!run(&WindowSecret::Code(code), &passphrase("mysecret")));
    }

    #[test]
    fn what_is_sent_of_a_code_says_nothing_about_its_secret_or_check_symbol() {
        // Two codes of one window with different secrets have the same MAC key and channel.
        let codes: Vec<_> = (0..40_000).map(|seed| Code::generate(&mut StdRng::seed_from_u64(seed))).collect();
        let mut pairs = 0;
        for a in &codes[..50] {
            for b in codes.iter().filter(|b| b.window() == a.window() && *b != a) {
                let (a, b) = (WindowSecret::Code(a.clone()), WindowSecret::Code(b.clone()));
                assert_eq!((a.mac_key(), a.channel()), (b.mac_key(), b.channel()));
                pairs += 1;
            }
        }
        assert!(pairs > 0);
    }

    #[test]
    fn shares_that_are_no_points_are_refused() {
        let mut rng = StdRng::seed_from_u64(1);
        let secret = passphrase("mysecret");
        let shared = share(&secret, &joiner(), &mut rng);
        for bad in [[0; 32], [0xff; 32]] {
            let message = Share { id: &[1; 16], share: &bad, commitment: &[0; 32] };
            assert_eq!(reply(&secret, &message, &[0; 116], &[9; 8], &mut rng).err(), Some(InvalidShare));
        }
        let message = ShareReply { receiver: shared.sender(), session: [9; 8], share: &[0; 32] };
        assert!(shared.prove(&message, &[0; 52]).is_err());
    }
}
