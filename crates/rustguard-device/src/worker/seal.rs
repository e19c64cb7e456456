//! What sending and relaying have in common: a run of packets is sealed in place and leaves as few datagram runs.

use crate::{
    drops::DropReason,
    shared::{PeerShared, Shared, Signal},
};
use rustguard_core::{node::PeerId, session::HEADER_LEN, time::Instant};
use rustguard_crypto::aead::{Frame, TAG_LEN};
use rustguard_tun::{Endpoint, Network, Segments, Transmit};

/// Seals a run for `peer` and lists its datagrams; what has no session to be sealed with goes to staging.
pub(super) fn seal(
    peer: &PeerShared,
    slab: &mut [u8],
    frames: &mut [Frame],
    now: Instant,
    transmits: &mut Vec<Transmit>,
    shared: &Shared,
) {
    let sealer = peer.sealer.load();
    let Some(sealer) = sealer.as_deref() else { return stage(peer.id, slab, frames, shared) };
    let Some(reserved) = sealer.reserve(now, frames.len()) else { return stage(peer.id, slab, frames, shared) };
    if reserved.rekey {
        shared.control.want_handshake(peer);
    }
    let endpoint = peer.endpoint.load();
    let Some(&endpoint) = endpoint.as_deref() else {
        return shared.drops.count(DropReason::NoEndpoint, frames.len());
    };
    for (frame, counter) in frames.iter_mut().zip(reserved.first..) {
        frame.counter = counter;
    }
    let several = peer.several.load();
    let spread = several.as_deref().filter(|several| several.spreads());
    let mut bytes = 0;
    // Listed before they are sealed: only the text tells the flow.
    for frame in &*frames {
        let (offset, len) = (frame.offset - HEADER_LEN, HEADER_LEN + frame.len + TAG_LEN);
        bytes += len as u64;
        let text = || &slab[frame.offset..frame.offset + frame.len];
        let to = spread.and_then(|paths| paths.endpoint(text(), now)).unwrap_or(endpoint);
        extend(transmits, to, offset, len);
    }
    sealer.seal(slab, frames);
    if peer.activity.data_sent(now, bytes) {
        shared.control.signal(Signal::Activity(peer.id));
    }
}

/// Sends what was sealed for `peers`.
pub(super) fn send<'a>(
    network: &mut impl Network,
    slab: &[u8],
    transmits: &[Transmit],
    peers: impl Iterator<Item = &'a PeerShared>,
    shared: &Shared,
) {
    let sent = network.send(slab, transmits);
    shared.drops.count(DropReason::SendFailed, sent.failed);
    if sent.source_lost > 0 {
        peers.for_each(PeerShared::forget_source);
    }
}

/// Adds a datagram to the last transmit where it continues it, else starts one.
fn extend(transmits: &mut Vec<Transmit>, to: Endpoint, offset: usize, len: usize) {
    if let Some(Transmit { to: last_to, segments: last }) = transmits.last_mut()
        && *last_to == to
        && last.last_len == last.len
        && len <= last.len
        && offset == last.offset + last.count * last.stride
    {
        last.count += 1;
        last.last_len = len;
        return;
    }
    let segments = Segments { offset, stride: len, count: 1, len, last_len: len };
    transmits.push(Transmit { to, segments });
}

/// Hands packets over to control, which keeps them until a handshake is complete.
#[cold]
fn stage(peer: PeerId, slab: &[u8], frames: &[Frame], shared: &Shared) {
    for frame in frames {
        let packet = slab[frame.offset..frame.offset + frame.len].into();
        if shared.control.staging.try_send((peer, packet)).is_err() {
            shared.drops.count(DropReason::StagingBusy, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_on_its_way_to_staging_is_counted() {
        let (shared, mut inbox) = crate::shared::testing::shared(2);
        let peer = PeerShared::new(PeerId(1), rustguard_crypto::x25519::PublicKey([1; 32]), std::sync::Arc::default());
        let mut slab = *b"one two three four";
        let frame = |offset, len| Frame { offset, len, counter: 0 };
        let mut frames = [frame(0, 3), frame(4, 3), frame(8, 5), frame(14, 4)];
        let mut transmits = Vec::new();
        seal(&peer, &mut slab, &mut frames, Instant::from_nanos(0), &mut transmits, &shared);
        assert!(transmits.is_empty(), "there is no session");
        assert_eq!(shared.drops.snapshot(), [(DropReason::StagingBusy, 2)]);
        let staged: Vec<_> = std::iter::from_fn(|| inbox.staging.try_recv().ok()).collect();
        assert_eq!(staged, [(PeerId(1), (*b"one").into()), (PeerId(1), (*b"two").into())]);
    }

    #[test]
    fn each_flow_has_one_path_and_all_paths_have_flows() {
        use crate::several::Several;
        use rustguard_core::paths::{Choice, Place, Share};
        use std::{collections::HashMap, sync::Arc};

        let (shared, _inbox) = crate::shared::testing::shared(2);
        let now = Instant::from_nanos(1_000_000_000);
        let (sealer, _) = crate::shared::testing::session(7, now);
        let peer = PeerShared::new(PeerId(1), rustguard_crypto::x25519::PublicKey([1; 32]), Arc::default());
        peer.sealer.store(Some(Arc::new(sealer)));
        let place = |n| Place { remote: ([192, 0, 2, n], 1).into(), local: None, interface: 0 };
        peer.endpoint.store(Some(Arc::new(Endpoint { remote: place(9).remote, local: None })));
        let share = |path, weight| (Share { path, weight }, place(path));
        let choice = Choice { spread: vec![share(3, 1), share(5, 3)], ..Choice::default() };
        peer.several.store(Several::new(&choice, &Arc::default()).map(Arc::new));
        // UDP packets of eight flows, in turn; 40 bytes each, the header in front and the tag behind.
        let stride = HEADER_LEN + 48 + TAG_LEN;
        let mut slab = vec![0; 64 * stride];
        let mut frames = Vec::new();
        for n in 0..64 {
            let offset = n * stride + HEADER_LEN;
            slab[offset] = 0x45;
            (slab[offset + 3], slab[offset + 9], slab[offset + 21]) = (40, 17, n as u8 % 8);
            frames.push(Frame { offset, len: 48, counter: 0 });
        }
        let mut transmits = Vec::new();
        seal(&peer, &mut slab, &mut frames, now, &mut transmits, &shared);
        let mut paths = HashMap::new();
        for Transmit { to, segments } in &transmits {
            for piece in segments.pieces() {
                let flow = piece.offset / stride % 8;
                assert_eq!(*paths.entry(flow).or_insert(to.remote), to.remote, "flow {flow}");
            }
        }
        let by = |n| paths.values().filter(|remote| **remote == place(n).remote).count();
        assert_eq!((by(3), by(5)), (2, 6), "as the weights say");
    }

    #[test]
    fn equal_datagrams_side_by_side_become_one_transmit_and_a_short_one_ends_it() {
        let a = Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: None };
        let b = Endpoint { remote: "192.0.2.2:1".parse().unwrap(), local: None };
        let mut out = Vec::new();
        for (to, offset, len) in [(a, 0, 100), (a, 100, 100), (a, 200, 60), (a, 260, 60), (b, 320, 60), (b, 380, 80)] {
            extend(&mut out, to, offset, len);
        }
        let seg = |offset, stride, count, last_len| Segments { offset, stride, count, len: stride, last_len };
        assert_eq!(
            out,
            [
                Transmit { to: a, segments: seg(0, 100, 3, 60) },
                Transmit { to: a, segments: seg(260, 60, 1, 60) },
                Transmit { to: b, segments: seg(320, 60, 1, 60) },
                Transmit { to: b, segments: seg(380, 80, 1, 80) },
            ]
        );
    }

    #[test]
    fn datagrams_with_a_gap_between_them_stay_apart() {
        let a = Endpoint { remote: "192.0.2.1:1".parse().unwrap(), local: None };
        let mut out = Vec::new();
        extend(&mut out, a, 0, 100);
        extend(&mut out, a, 116, 100);
        assert_eq!(out.len(), 2);
    }
}
