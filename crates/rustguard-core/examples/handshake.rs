//! A WireGuard handshake by hand: the fields of each message, and the resulting session.
//!
//! ```sh
//! cargo run -p rustguard-core --example handshake
//! ```
use rand::{Rng, rngs::StdRng};
use rustguard_core::{
    cookie::{Checker, Maker},
    noise::{self, Claimed, ResponseFields, WIREGUARD},
    session::{HEADER_LEN, OVERHEAD, ReplayWindow, Side, establish},
    tai64n::Timestamp,
    time::Instant,
    wire::{Initiation, Kind, Message, Response},
};
use rustguard_crypto::{
    aead::Frame,
    x25519::{PublicKey, StaticSecret},
};
use std::{error::Error, time::SystemTime};

fn main() -> Result<(), Box<dyn Error>> {
    // The core never reads a clock or a random source: the program provides both.
    let mut rng: StdRng = rand::make_rng();
    let now = Instant::from_nanos(0);
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let preshared_key = [0; 32];

    let alice = secret(&mut rng);
    let bob = secret(&mut rng);
    println!("alice is {:?}, bob is {:?}", alice.public_key(), bob.public_key());

    // Alice: e, es, s, ss, and the time, so that a replay can be detected.
    let alices_index = rng.next_u32();
    let mut timestamp = Timestamp::of(unix).0;
    let static_static = alice.diffie_hellman(&bob.public_key())?;
    let (initiated, fields) = noise::initiate(
        &WIREGUARD,
        &alice.public_key(),
        &bob.public_key(),
        &static_static,
        secret(&mut rng),
        &mut timestamp,
    )?;
    let mut message = Initiation::build(alices_index, &fields.ephemeral.0, &fields.static_key, &timestamp, &fields.tag);
    Maker::new(&WIREGUARD, &bob.public_key()).sign(&mut message, now);
    println!("→ initiation, {} bytes, from index {alices_index:08x}", message.len());

    // Bob: first MAC1, which is cheap; then the claimed key; then its proof.
    assert!(Checker::new(&WIREGUARD, &bob.public_key()).mac1_is_valid(&message));
    let Some(Message::Initiation(initiation)) = Message::parse(&message) else {
        return Err("not an initiation".into());
    };
    let claimed = Claimed::read(&WIREGUARD, &bob, &PublicKey(*initiation.ephemeral()), initiation.static_key())?;
    println!("  bob: it claims to be from {:?}", claimed.peer());
    let static_static = bob.diffie_hellman(claimed.peer())?;
    let mut timestamp = *initiation.timestamp();
    let received = claimed.verify(&static_static, &mut timestamp, initiation.timestamp_tag())?;
    println!("  bob: it is, and it was made at {:02x?}", timestamp);

    // Bob: e, ee, se, psk, and no payload.
    let bobs_index = rng.next_u32();
    let (fields, keys) = received.respond(&preshared_key, secret(&mut rng), &mut [])?;
    let mut message = Response::build(bobs_index, initiation.sender(), &fields.ephemeral.0, &fields.tag);
    Maker::new(&WIREGUARD, &alice.public_key()).sign(&mut message, now);
    println!("← response, {} bytes, from index {bobs_index:08x}", message.len());
    let (_, bobs_opener) = establish(&keys, Side::Responder, bobs_index, initiation.sender(), now);

    // Alice: a forged response changes nothing, the genuine one ends the handshake.
    let Some(Message::Response(response)) = Message::parse(&message) else { return Err("not a response".into()) };
    let fields = ResponseFields { ephemeral: PublicKey(*response.ephemeral()), tag: *response.tag() };
    let forged = ResponseFields { tag: [0; 16], ..fields };
    let refused = initiated.verify(&alice, &preshared_key, &forged, &mut []).err();
    println!("  alice: a forged response is refused: {}", refused.ok_or("accepted a forgery")?);
    let answer = initiated.verify(&alice, &preshared_key, &fields, &mut [])?;
    let keys = initiated.finish(answer);
    let (alices_sealer, _) = establish(&keys, Side::Initiator, alices_index, response.sender(), now);

    // Data: sealed in place, between a header and a tag.
    let text = b"hello through the tunnel";
    let mut slab = vec![0; OVERHEAD + text.len()];
    slab[HEADER_LEN..HEADER_LEN + text.len()].copy_from_slice(text);
    let counter = alices_sealer.reserve(now, 1).ok_or("the session is too old")?.first;
    alices_sealer.seal(&mut slab, &[Frame { offset: HEADER_LEN, len: text.len(), counter }]);
    println!("→ data, {} bytes for {} of text, counter {counter}", slab.len(), text.len());

    let Some(Kind::Data { receiver, counter }) = Kind::of(&slab) else { return Err("not data".into()) };
    assert_eq!(receiver, bobs_opener.index());
    let mut opened = [false];
    bobs_opener.open(&mut slab, &[Frame { offset: HEADER_LEN, len: text.len(), counter }], &mut opened);
    assert_eq!(opened, [true]);
    let mut window = ReplayWindow::default();
    window.accept(counter)?;
    println!("  bob: {:?}", core::str::from_utf8(&slab[HEADER_LEN..HEADER_LEN + text.len()])?);
    println!("  bob: the same again: {}", window.accept(counter).err().ok_or("accepted a replay")?);
    Ok(())
}

fn secret(rng: &mut StdRng) -> StaticSecret {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    StaticSecret::from_bytes(bytes)
}
