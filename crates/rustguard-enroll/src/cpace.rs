//! CPace over ristretto255 and SHA-512 (draft-irtf-cfrg-cpace-21, initiator and responder mode).
//!
//! A passive listener learns nothing about the password. A participant can test one guess per exchange.
use curve25519_dalek::{
    ristretto::{CompressedRistretto, RistrettoPoint},
    scalar::Scalar,
    traits::IsIdentity as _,
};
use rand_core::CryptoRng;
use sha2::{Digest as _, Sha512};
use zeroize::Zeroizing;

/// Bytes of a share.
pub const SHARE_LEN: usize = 32;
/// Bytes of the shared secret.
pub const SECRET_LEN: usize = 64;

/// The input block size of SHA-512 in bytes (the draft's `s_in_bytes`).
const HASH_BLOCK: usize = 128;
const DSI: &[u8] = b"CPaceRistretto255";
const DSI_ISK: &[u8] = b"CPaceRistretto255_ISK";

/// The values on which both sides must agree before they exchange shares.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The secret that may be weak (the draft's PRS).
    pub password: &'a [u8],
    /// The parties and the protocol (the draft's CI).
    pub channel: &'a [u8],
    /// Identifies this exchange (the draft's sid).
    pub session: &'a [u8],
}

/// A share, and the associated data that its sender binds to the result (the draft's Y and AD).
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// The encoded group element.
    pub share: &'a [u8; SHARE_LEN],
    /// Associated data, public.
    pub data: &'a [u8],
}

/// The peer's share is not a group element, or is the neutral element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the share is not a canonical element of ristretto255, or the neutral one")]
pub struct InvalidShare;

/// One side of a balanced password-authenticated key exchange with one share each way. Both sides get the same result
/// if their passwords are equal. The protocol around it must confirm that they are. The scalar is wiped on drop.
pub struct CPace {
    scalar: Zeroizing<Scalar>,
    share: [u8; SHARE_LEN],
}

impl CPace {
    /// Begins, with fresh randomness.
    pub fn start(context: &Context<'_>, rng: &mut impl CryptoRng) -> Self {
        // 64 random bytes are reduced, so the bias is negligible.
        let mut wide = Zeroizing::new([0; 64]);
        rng.fill_bytes(&mut *wide);
        Self::with_scalar(context, Scalar::from_bytes_mod_order_wide(&wide))
    }

    /// Our share.
    pub fn share(&self) -> &[u8; SHARE_LEN] {
        &self.share
    }

    /// Takes the answer to our share. `ours` is the associated data that our share was sent with.
    ///
    /// # Errors
    /// [`InvalidShare`].
    pub fn finish_as_initiator(
        self,
        session: &[u8],
        ours: &[u8],
        theirs: &Message<'_>,
    ) -> Result<Zeroizing<[u8; SECRET_LEN]>, InvalidShare> {
        let ours = Message { share: &self.share, data: ours };
        self.finish(session, theirs, [&ours, theirs])
    }

    /// Takes the share that our share answers. `ours` is the associated data that our share is sent with.
    ///
    /// # Errors
    /// [`InvalidShare`].
    pub fn finish_as_responder(
        self,
        session: &[u8],
        ours: &[u8],
        theirs: &Message<'_>,
    ) -> Result<Zeroizing<[u8; SECRET_LEN]>, InvalidShare> {
        let ours = Message { share: &self.share, data: ours };
        self.finish(session, theirs, [theirs, &ours])
    }

    /// The transcript has the initiator's message first.
    fn finish(
        &self,
        session: &[u8],
        theirs: &Message<'_>,
        [first, second]: [&Message<'_>; 2],
    ) -> Result<Zeroizing<[u8; SECRET_LEN]>, InvalidShare> {
        let common = multiply(&self.scalar, theirs.share)?;
        let mut hash = Sha512::new();
        let parts = [DSI_ISK, session, &*common, first.share, first.data, second.share, second.data];
        parts.iter().for_each(|part| with_length(part, |bytes| hash.update(bytes)));
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        hash.finalize_into((&mut *secret).into());
        Ok(secret)
    }

    fn with_scalar(context: &Context<'_>, scalar: Scalar) -> Self {
        let scalar = Zeroizing::new(scalar);
        let share = (generator(context) * *scalar).compress().to_bytes();
        Self { scalar, share }
    }
}

/// The draft's `calculate_generator`: hashes the password to the group. The padding fills the first block, so that this
/// block depends on the password alone.
fn generator(context: &Context<'_>) -> RistrettoPoint {
    let mut string = Zeroizing::new(Vec::with_capacity(2 * HASH_BLOCK + context.channel.len()));
    with_length(DSI, |bytes| string.extend_from_slice(bytes));
    with_length(context.password, |bytes| string.extend_from_slice(bytes));
    let padding = [0; HASH_BLOCK];
    let padding = &padding[..(HASH_BLOCK - 1).saturating_sub(string.len())];
    with_length(padding, |bytes| string.extend_from_slice(bytes));
    with_length(context.channel, |bytes| string.extend_from_slice(bytes));
    with_length(context.session, |bytes| string.extend_from_slice(bytes));
    let mut wide = Zeroizing::new([0; 64]);
    wide.copy_from_slice(&Sha512::digest(&*string));
    RistrettoPoint::from_uniform_bytes(&wide)
}

/// The draft's `scalar_mult_vfy`. Not every value of 32 bytes is an element, and each element has only one encoding.
fn multiply(scalar: &Scalar, share: &[u8; SHARE_LEN]) -> Result<Zeroizing<[u8; 32]>, InvalidShare> {
    let point = CompressedRistretto(*share).decompress().ok_or(InvalidShare)?;
    let product = Zeroizing::new(point * scalar);
    if product.is_identity() { Err(InvalidShare) } else { Ok(Zeroizing::new(product.compress().to_bytes())) }
}

/// The draft's `prepend_len`: the length in LEB128, then the bytes.
fn with_length(bytes: &[u8], mut to: impl FnMut(&[u8])) {
    let mut len = bytes.len();
    while len >= 0x80 {
        to(&[len as u8 | 0x80]);
        len >>= 7;
    }
    to(&[len as u8]);
    to(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use hex_literal::hex;
    use rand::{SeedableRng as _, rngs::StdRng};

    // draft-irtf-cfrg-cpace-21, appendix B.3: "CPace using group ristretto255 and hash SHA-512".
    const CONTEXT: Context<'_> = Context {
        password: b"Password",
        channel: b"\nAinitiator\nBresponder",
        session: &hex!("7e4b4791d6a8ef019b936c79fb7f2c57"),
    };
    const GENERATOR: [u8; 32] = hex!("5e25411ca1ad7c9debfd0b33ad987a95cefef2d3f15dcc8bd26415a5dfe2e15a");
    const SCALAR_A: [u8; 32] = hex!("da3d23700a9e5699258aef94dc060dfda5ebb61f02a5ea77fad53f4ff0976d08");
    const SHARE_A: [u8; 32] = hex!("383a85dd236978f17f8c8545b50dabc52a39fcdab2cf8bc531ce040ff77ca82d");
    const SCALAR_B: [u8; 32] = hex!("d2316b454718c35362d83d69df6320f38578ed5984651435e2949762d900b80d");
    const SHARE_B: [u8; 32] = hex!("a6206309c0e8e5f579295e35997ac4300ab3fecec3c17f7b604f3e698fa1383c");
    const COMMON: [u8; 32] = hex!("fa1d0318864e2cacb26875f1b791c9ae83204fe8359addb53e95a2e98893853f");
    const SECRET: [u8; 64] = hex!(
        "e91ccb2c0f5e0d0993a33956e3be59754f3f2b07db57631f5394452ea2e7b435"
        "4674eb1f5686c078462bf83bec72e8743df440108e638f3526d9b90e85be096f"
    );
    const VALID_SCALAR: [u8; 32] = hex!("7cd0e075fa7955ba52c02759a6c90dbbfc10e6d40aea8d283e407d88cf538a05");
    const VALID_POINT: [u8; 32] = hex!("2c3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c");
    const VALID_PRODUCT: [u8; 32] = hex!("7c13645fe790a468f62c39beb7388e541d8405d1ade69d1778c5fe3e7f6b600e");
    const NOT_A_POINT: [u8; 32] = hex!("2b3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c");

    fn side(bytes: [u8; 32]) -> CPace {
        let scalar = Option::from(Scalar::from_canonical_bytes(bytes)).expect("the draft's scalars are canonical");
        CPace::with_scalar(&CONTEXT, scalar)
    }

    #[test]
    fn the_drafts_vectors() {
        assert_eq!(generator(&CONTEXT).compress().to_bytes(), GENERATOR);
        let (a, b) = (side(SCALAR_A), side(SCALAR_B));
        assert_eq!((a.share(), b.share()), (&SHARE_A, &SHARE_B));
        assert_eq!(*multiply(&a.scalar, &SHARE_B).expect("a point"), COMMON);
        assert_eq!(*multiply(&b.scalar, &SHARE_A).expect("a point"), COMMON);
        let from_a = Message { share: &SHARE_A, data: b"ADa" };
        let from_b = Message { share: &SHARE_B, data: b"ADb" };
        let session = CONTEXT.session;
        assert_eq!(*a.finish_as_initiator(session, b"ADa", &from_b).expect("a point"), SECRET);
        assert_eq!(*b.finish_as_responder(session, b"ADb", &from_a).expect("a point"), SECRET);
    }

    #[test]
    fn the_drafts_invalid_points_low_order_and_non_canonical_encodings() {
        let scalar = Option::from(Scalar::from_canonical_bytes(VALID_SCALAR)).expect("canonical");
        assert_eq!(multiply(&scalar, &VALID_POINT).as_deref(), Ok(&VALID_PRODUCT));
        assert_eq!(multiply(&scalar, &NOT_A_POINT), Err(InvalidShare));
        assert_eq!(multiply(&scalar, &[0; 32]), Err(InvalidShare), "the neutral element");
        assert_eq!(multiply(&scalar, &[0xff; 32]), Err(InvalidShare), "above the modulus");
        // p + 0 is another way to write the neutral element. RFC 9496 permits one encoding for each element.
        let modulus = hex!("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f");
        assert_eq!(multiply(&scalar, &modulus), Err(InvalidShare));
    }

    #[test]
    fn everything_that_differs_gives_another_secret() {
        let run = |other: &Context<'_>, data: &[u8]| {
            let mut rng = StdRng::seed_from_u64(9);
            let (a, b) = (CPace::start(&CONTEXT, &mut rng), CPace::start(other, &mut rng));
            let (share_a, share_b) = (*a.share(), *b.share());
            let from_b = Message { share: &share_b, data: b"b" };
            let from_a = Message { share: &share_a, data };
            let ours = a.finish_as_initiator(CONTEXT.session, b"a", &from_b).expect("honest");
            ours == b.finish_as_responder(other.session, b"b", &from_a).expect("honest")
        };
        assert!(run(&CONTEXT, b"a"));
        assert!(!run(&CONTEXT, b"another"));
        assert!(!run(&Context { password: b"Passwort", ..CONTEXT }, b"a"));
        assert!(!run(&Context { channel: b"elsewhere", ..CONTEXT }, b"a"));
        assert!(!run(&Context { session: &[0; 16], ..CONTEXT }, b"a"));
    }

    #[test]
    fn lengths_beyond_127_take_two_bytes() {
        let mut out = Vec::new();
        with_length(&[7; 300], |bytes| out.extend_from_slice(bytes));
        assert_eq!((&out[..3], out.len()), (&[0xac, 0x02, 7][..], 302));
        // A password longer than a block needs no padding, and must not cause an underflow.
        let long = Context { password: &[7; 300], ..CONTEXT };
        assert_ne!(generator(&long), generator(&CONTEXT));
    }
}
