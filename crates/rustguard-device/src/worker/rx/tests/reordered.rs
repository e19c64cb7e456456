//! A link that reorders.

use super::*;

const HALF: Duration = Duration::from_micros(500);

/// A UDP packet with a number in it, long enough to wait for another.
fn datagram(number: u8) -> Vec<u8> {
    let mut datagram = packet(1).to_vec();
    datagram.resize(512, number);
    datagram[2..4].copy_from_slice(&512_u16.to_be_bytes());
    datagram[9] = 17;
    datagram
}

#[test]
fn a_flow_that_is_put_out_of_order_reaches_the_host_in_order() {
    let mut lab = Lab::new();
    let mut numbers = Vec::new();
    for round in 0..50 {
        let sealed: Vec<_> = (0..4).map(|n| lab.sealed(&datagram(round * 4 + n))).collect();
        // No packet waits for a keepalive or for a packet that is no IP.
        let (keepalive, unknown) = (lab.sealed(&[]), lab.sealed(&[0xff; 16]));
        // Two batches, half a millisecond apart.
        let at = Duration::from_millis(round.into());
        for (batch, after) in
            [([&sealed[1], &sealed[3], &keepalive], at), ([&sealed[2], &unknown, &sealed[0]], at + HALF)]
        {
            let (got, _) = lab.receive(&batch.map(Vec::as_slice), after);
            numbers.extend(got.into_iter().map(|packet| packet[511]));
        }
    }
    assert!(!numbers[..40].is_sorted(), "nothing is held before it is known");
    assert!(numbers[80..].is_sorted(), "{numbers:?}");
    let sorted = {
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(sorted, (0..200).collect::<Vec<_>>(), "each once");
}

#[test]
fn without_reordering_nobody_is_watched() {
    let mut lab = Lab::new();
    for n in 0..200 {
        let sealed = lab.sealed(&datagram(n));
        if n % 5 > 0 {
            let at = Duration::from_millis(n.into());
            assert_eq!(lab.receive(&[&sealed], at).0, [datagram(n)]);
            let watched = lab.rx.resequence.watched((PeerId(1), 0), INDEX, false, || Some(0), MADE);
            assert_eq!((watched, lab.rx.deadline()), (None, None));
        }
    }
}
