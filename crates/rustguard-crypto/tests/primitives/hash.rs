//! BLAKE2s, HMAC and HKDF against published vectors and an independent implementation.
//!
//! Where no document has a vector of the needed shape, the expected values were computed with Python's
//! `hashlib.blake2s` (the reference implementation) and `hmac`. Keys and messages are 00 01 02 03 …, as in the
//! known-answer tests of BLAKE2.

use hex_literal::hex;
use rustguard_crypto::hash::{ct_eq, hash, hmac, kdf, mac};

/// The bytes 00 01 02 03 …
fn count<const N: usize>() -> [u8; N] {
    core::array::from_fn(|i| i as u8)
}

/// RFC 7693, appendix B.
#[test]
fn rfc7693_appendix_b() {
    assert_eq!(hash(&[b"abc"]), hex!("508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"));
}

/// The known-answer tests published with BLAKE2 ("blake2s-kat"), around the block size of 64.
#[test]
fn blake2s_known_answers() {
    assert_eq!(hash(&[&count::<0>()]), hex!("69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9"));
    assert_eq!(hash(&[&count::<1>()]), hex!("e34d74dbaf4ff4c6abd871cc220451d2ea2648846c7757fbaac82fe51ad64bea"));
    assert_eq!(hash(&[&count::<63>()]), hex!("e57cb79487dd57902432b250733813bd96a84efce59f650fac26e6696aefafc3"));
    assert_eq!(hash(&[&count::<64>()]), hex!("56f34e8b96557e90c1f24b52d0c89d51086acf1b00f634cf1dde9233b8eaaa3e"));
    assert_eq!(hash(&[&count::<65>()]), hex!("1b53ee94aaf34e4b159d48de352c7f0661d0a40edff95a0b1639b4090e974472"));
    assert_eq!(hash(&[&count::<255>()]), hex!("f03f5789d3336b80d002d59fdf918bdb775b00956ed5528e86aa994acb38fe2d"));
}

/// The first two hashes of every handshake (whitepaper, section 5.4.2). Expected: `hashlib.blake2s`.
#[test]
fn wireguard_initial_hashes() {
    let chaining_key = hash(&[b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"]);
    assert_eq!(chaining_key, hex!("60e26daef327efc02ec335e2a025d2d016eb4206f87277f52d38d1988b78cd36"));
    assert_eq!(
        hash(&[&chaining_key, b"WireGuard v1 zx2c4 Jason@zx2c4.com"]),
        hex!("2211b361081ac566691243db458ad5322d9c6c662293e8b70ee19c65ba079ef3")
    );
}

/// Expected: `hashlib.blake2s(message, key=key, digest_size=16)`. MAC1 and MAC2 cover 116 and 132 bytes.
#[test]
fn keyed_blake2s_of_16_bytes() {
    assert_eq!(mac(&count::<32>(), &[&count::<0>()]), hex!("9536f9b267655743dee97b8a670f9f53"));
    assert_eq!(mac(&count::<32>(), &[&count::<1>()]), hex!("13bacfb85b48a1223c595f8c1e7e82cb"));
    assert_eq!(mac(&count::<32>(), &[&count::<64>()]), hex!("f1efa90d2547036841ecd3627fafbc36"));
    assert_eq!(mac(&count::<32>(), &[&count::<116>()]), hex!("072e94ffbfc684bd8ab2a1b9dade2fd5"));
    assert_eq!(mac(&count::<32>(), &[&count::<255>()]), hex!("cd075928ab7e6883e697fe7fd3ac43ee"));
    assert_eq!(mac(&count::<16>(), &[&count::<132>()]), hex!("b03d1196bdcfaad40f911db86b79ac7e"));
    assert_eq!(mac(&count::<1>(), &[&count::<3>()]), hex!("2dc274d52c2abc1db926bcb9e565636c"));
}

#[test]
#[should_panic(expected = "BLAKE2s is not keyed by an empty key")]
fn an_empty_mac_key_panics() {
    mac(&[], &[b"abc"]);
}

#[test]
#[should_panic(expected = "BLAKE2s takes keys of up to 32 bytes")]
fn a_long_mac_key_panics() {
    mac(&[0; 33], &[b"abc"]);
}

/// Expected: `hmac.new(key, message, hashlib.blake2s)`. Keys up to, of and beyond the block size.
#[test]
fn hmac_blake2s() {
    assert_eq!(
        hmac(&count::<0>(), &[&count::<0>()]),
        hex!("eaf4bb25938f4d20e72656bbbc7a9bf63c0c18537333c35bdb67db1402661acd")
    );
    assert_eq!(
        hmac(&count::<32>(), &[&count::<0>()]),
        hex!("e2641d24dfa8dd89e8cb77f1cdc77d8c006e5bebdfc4d6a3a3a6f8d5b7586fb0")
    );
    assert_eq!(
        hmac(&count::<32>(), &[&count::<32>()]),
        hex!("8d2cc42fc1055ea43277dfd5d35d3863b228f9cc0c02007dc2afb20907bd7312")
    );
    assert_eq!(
        hmac(&count::<64>(), &[&count::<100>()]),
        hex!("647576eb06d7546ce6db9b3c0c1509a64cc7fae9cb732ee3845e7b486ad26edc")
    );
    assert_eq!(
        hmac(&count::<65>(), &[&count::<5>()]),
        hex!("95b9de0acc26ad89fef919b2e527f04585980f90d15518bda390193f635d8026")
    );
    assert_eq!(
        hmac(&count::<131>(), &[&count::<200>()]),
        hex!("5bdd636769e450378807b159e818c03b267e4c2ce661ed3ea06c2ebef50c9400")
    );
}

/// Expected: `hmac` as above, chained as in Noise (section 4.3).
#[test]
fn noise_hkdf() {
    let [one, two, three] = [
        hex!("7a38c34bf2b8738d7374ca77c44ecb309a11d2b2528304fa86052c365e722624"),
        hex!("1a17621f346abdc520746a9fb64d8eb03231d674fc15687537b0780fd9c060fd"),
        hex!("4eaf02809ac4b930ef63479de62275f1c55656e61f78a3cc653c18a2223d6c5f"),
    ];
    let input = count::<0>();
    assert_eq!(kdf(&count(), &input), [one]);
    assert_eq!(kdf(&count(), &input), [one, two]);
    assert_eq!(kdf(&count(), &input), [one, two, three]);
    let [one, two, three] = [
        hex!("1fcf29000a27f12dc0691acf0f15bf4c55199f925d65441a3c08b566fce08d13"),
        hex!("704818f0cdc896cc3d7fe77c61f24e33db30aa69ef63758d5cfce8d6335c1b46"),
        hex!("7c46c5eddb1418694b9a599d7d5842039b4fbbf946e376bf59d19847342fee80"),
    ];
    let input = count::<32>();
    assert_eq!(kdf(&count(), &input), [one]);
    assert_eq!(kdf(&count(), &input), [one, two]);
    assert_eq!(kdf(&count(), &input), [one, two, three]);
}

/// The division of a message into parts makes no difference.
#[test]
fn parts_are_one_message() {
    let message = count::<200>();
    let key = count::<32>();
    for first in [0, 1, 63, 64, 65, 128, 200] {
        for second in [first, 130.max(first), 200] {
            let parts = [&message[..first], &message[first..second], &[], &message[second..]];
            assert_eq!(hash(&parts), hash(&[&message]));
            assert_eq!(mac(&key, &parts), mac(&key, &[&message]));
            assert_eq!(hmac(&key, &parts), hmac(&key, &[&message]));
        }
    }
    assert_eq!(hash(&[]), hash(&[&[]]));
}

#[test]
fn macs_compare_by_content_and_length() {
    let mac = count::<16>();
    assert!(ct_eq(&mac, &count::<16>()));
    assert!(ct_eq(&[], &[]));
    assert!(!ct_eq(&mac, &mac[..15]));
    for byte in 0..16 {
        let mut other = mac;
        other[byte] ^= 0x80;
        assert!(!ct_eq(&mac, &other));
    }
}
