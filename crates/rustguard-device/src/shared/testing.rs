//! For tests of the workers: the state that they share with control, without a control.

use crate::{
    handshakes::{HandshakeInbox, HandshakeQueues},
    shared::{
        Shared,
        listen_ports::ListenPorts,
        to_control::{Capacity, FromWorkers, channels},
    },
};
use rustguard_core::{
    noise::{Claimed, WIREGUARD, initiate},
    session::{Opener, Sealer, Side, establish},
    time::Instant,
};
use rustguard_crypto::x25519::StaticSecret;

/// The queues that control would read.
pub(crate) struct Inbox {
    pub(crate) handshakes: HandshakeInbox,
    pub(crate) from_workers: FromWorkers,
}

/// The shared state, with an MTU of 1,420 and room for `capacity` messages in each queue.
pub(crate) fn shared(capacity: usize) -> (Shared, Inbox) {
    let (queues, handshakes) = HandshakeQueues::new(capacity);
    let (control, from_workers) = channels(&Capacity { routes: capacity, engine: capacity, probes: capacity });
    (Shared::new(1_420, ListenPorts::default(), control, queues), Inbox { handshakes, from_workers })
}

/// The sealer of one side and the opener of the other, after a handshake between them; `index` is the receiver's.
pub(crate) fn session(index: u32, made: Instant) -> (Sealer, Opener) {
    let [initiator, responder, first, second] = [1, 2, 3, 4].map(|n| StaticSecret::from_bytes([n; 32]));
    let shared = initiator.diffie_hellman(&responder.public_key()).unwrap();
    let mut payload = [0; 12];
    let (initiated, fields) =
        initiate(&WIREGUARD, &initiator.public_key(), &responder.public_key(), &shared, first, &mut payload).unwrap();
    let claimed = Claimed::read(&WIREGUARD, &responder, &fields.ephemeral, &fields.static_key).unwrap();
    let received = claimed.verify(&shared, &mut payload, &fields.tag).unwrap();
    let (response, theirs) = received.respond(&[0; 32], second, &mut []).unwrap();
    let answer = initiated.verify(&initiator, &[0; 32], &response, &mut []).unwrap();
    let (sealer, _) = establish(&initiated.finish(answer), Side::Initiator, 7, index, made);
    let (_, opener) = establish(&theirs, Side::Responder, index, 7, made);
    (sealer, opener)
}
