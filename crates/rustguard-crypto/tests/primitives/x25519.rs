//! X25519 of each backend against RFC 7748, and public keys that must not be used.

use hex_literal::hex;
use rustguard_crypto::{
    backend::DiffieHellman,
    x25519::{LowOrder, PublicKey, SharedSecret, StaticSecret},
};

/// Makes each of the generic tests a test of every backend that is built in.
macro_rules! for_each_backend {
    ($($test:ident),* $(,)?) => {
        #[cfg(feature = "portable")]
        mod portable {
            $(#[test] fn $test() { super::$test::<rustguard_crypto::backend::portable::StaticSecret>(); })*
        }

        #[cfg(feature = "aws-lc")]
        mod aws_lc {
            $(#[test] fn $test() { super::$test::<rustguard_crypto::backend::aws_lc::StaticSecret>(); })*
        }

        #[cfg(all(feature = "simd", target_arch = "x86_64"))]
        mod simd {
            $(#[test] fn $test() { super::$test::<rustguard_crypto::backend::simd::StaticSecret>(); })*
        }
    };
}

for_each_backend!(
    rfc7748_section_5_2,
    rfc7748_section_5_2_iterated,
    rfc7748_section_6_1,
    low_order_points_are_refused,
    coordinates_beyond_the_field_are_reduced,
    a_pair_is_two_exchanges,
);

/// The function of RFC 7748, section 5, which clamps its scalar.
fn x25519<D: DiffieHellman>(scalar: [u8; 32], u: [u8; 32]) -> [u8; 32] {
    let scalar = StaticSecret::from_bytes(scalar).to_bytes();
    *D::from_clamped(&scalar).diffie_hellman(&PublicKey(u)).expect("not of low order").as_bytes()
}

fn rfc7748_section_5_2<D: DiffieHellman>() {
    assert_eq!(
        x25519::<D>(
            hex!("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
            hex!("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
        ),
        hex!("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    );
    // The highest bit of this coordinate is set, and ignored.
    assert_eq!(
        x25519::<D>(
            hex!("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d"),
            hex!("e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493")
        ),
        hex!("95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957")
    );
}

fn rfc7748_section_5_2_iterated<D: DiffieHellman>() {
    let mut nine = [0; 32];
    nine[0] = 9;
    let (mut k, mut u) = (nine, nine);
    for round in 1..=1000 {
        (k, u) = (x25519::<D>(k, u), k);
        if round == 1 {
            assert_eq!(k, hex!("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"));
        }
    }
    assert_eq!(k, hex!("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"));
}

const ALICE: [u8; 32] = hex!("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
const BOB: [u8; 32] = hex!("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");

fn rfc7748_section_6_1<D: DiffieHellman>() {
    let secret = |bytes| D::from_clamped(&StaticSecret::from_bytes(bytes).to_bytes());
    let (alice, bob) = (secret(ALICE), secret(BOB));
    assert_eq!(alice.public_key().0, hex!("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
    assert_eq!(bob.public_key().0, hex!("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));

    let shared = hex!("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
    assert_eq!(alice.diffie_hellman(&bob.public_key()).expect("contributory").as_bytes(), &shared);

    // A clone works without its original.
    let clone = bob.clone();
    drop(bob);
    assert_eq!(clone.diffie_hellman(&alice.public_key()).expect("contributory").as_bytes(), &shared);
}

/// Every encoding of a point whose order divides 8 on the curve or its twist, beyond the field ones included. Each is
/// also tried with the highest bit set, which does not count.
const LOW_ORDER: [[u8; 32]; 7] = [
    hex!("0000000000000000000000000000000000000000000000000000000000000000"),
    hex!("0100000000000000000000000000000000000000000000000000000000000000"),
    hex!("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    hex!("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    // p - 1, p, p + 1
    hex!("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    hex!("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    hex!("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
];

fn low_order_points_are_refused<D: DiffieHellman>() {
    for scalar in [ALICE, BOB, [0; 32], [0xff; 32]] {
        let secret = D::from_clamped(&StaticSecret::from_bytes(scalar).to_bytes());
        for mut point in LOW_ORDER {
            assert_eq!(secret.diffie_hellman(&PublicKey(point)).map(|_| ()), Err(LowOrder));
            point[31] |= 0x80;
            assert_eq!(secret.diffie_hellman(&PublicKey(point)).map(|_| ()), Err(LowOrder));
        }
    }
}

/// p + 9 is 9, the base point, whose multiple is the public half (RFC 7748, section 5: "non-canonical values").
fn coordinates_beyond_the_field_are_reduced<D: DiffieHellman>() {
    let alice = D::from_clamped(&StaticSecret::from_bytes(ALICE).to_bytes());
    let base = PublicKey(hex!("f6ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"));
    assert_eq!(alice.diffie_hellman(&base).expect("contributory").as_bytes(), &alice.public_key().0);
}

fn a_pair_is_two_exchanges<D: DiffieHellman>() {
    let secret = |bytes| D::from_clamped(&StaticSecret::from_bytes(bytes).to_bytes());
    let (alice, bob) = (secret(ALICE), secret(BOB));
    let bytes = |shared: Result<[_; 2], _>| shared.map(|shared: [SharedSecret; 2]| shared.map(|one| *one.as_bytes()));
    let apart = [bob.diffie_hellman(&alice.public_key()), alice.diffie_hellman(&alice.public_key())];
    let apart = apart.map(|shared| *shared.expect("contributory").as_bytes());
    let pair = |one, other| bytes(D::diffie_hellman_pair([(&bob, &one), (&alice, &other)]));
    assert_eq!(pair(alice.public_key(), alice.public_key()), Ok(apart));
    for point in LOW_ORDER.map(PublicKey) {
        assert_eq!(pair(point, alice.public_key()), Err(LowOrder));
        assert_eq!(pair(alice.public_key(), point), Err(LowOrder));
        assert_eq!(pair(point, point), Err(LowOrder));
    }
}

#[test]
fn secrets_are_clamped() {
    let clamped = |bytes| StaticSecret::from_bytes(bytes).to_bytes();
    let mut ones = [0xff; 32];
    (ones[0], ones[31]) = (0xf8, 0x7f);
    assert_eq!(clamped([0xff; 32]), ones);
    let mut zeros = [0; 32];
    zeros[31] = 0x40;
    assert_eq!(clamped([0; 32]), zeros);
    assert_eq!(clamped(ones), ones);
}

#[test]
fn both_sides_share_a_secret() {
    let (alice, bob) = (StaticSecret::from_bytes(ALICE), StaticSecret::from_bytes(BOB));
    let here = alice.diffie_hellman(&bob.public_key()).expect("contributory");
    let there = bob.diffie_hellman(&alice.public_key()).expect("contributory");
    assert_eq!(here.as_bytes(), there.as_bytes());
    assert_eq!(alice.diffie_hellman(&PublicKey([0; 32])).map(|_| ()), Err(LowOrder));
}

#[test]
fn debug_shows_no_secret_and_threads_share_them() {
    fn shared<T: Send + Sync>(_: &T) {}
    let alice = StaticSecret::from_bytes(ALICE);
    shared(&alice);
    assert_eq!(format!("{alice:?}"), "StaticSecret(..)");
    // As `wg pubkey` prints it: hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=
    assert_eq!(format!("{:?}", alice.public_key()), "PublicKey(hSDwCYkw…)");
    let shared = alice.diffie_hellman(&alice.public_key()).expect("contributory");
    assert_eq!(format!("{shared:?}"), "SharedSecret(..)");
}
