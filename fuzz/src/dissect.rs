//! Inner packets, as a filter sees them.
use rustguard_core::{
    dissect::{Dissected, RESET_MAX, Role, dissect as look, reset},
    icmp,
    packet::IpHead,
};

/// Reads the input as an IP packet.
///
/// The addresses of the flow are always those that routing uses. A reset or an ICMP error about the packet goes back to
/// its sender and belongs to the same flow. Neither may cause another answer.
pub fn dissect(input: &[u8]) {
    let Some(head) = IpHead::parse(input) else { return };
    let packet = &input[..head.len];
    let seen = look(packet);
    if let Dissected::Packet { tuple, fragment, .. } = seen {
        assert_eq!((tuple.source(), tuple.destination()), (head.source, head.destination));
        assert_eq!(tuple.reversed().reversed(), tuple);
        assert!(fragment.is_none_or(|(_, end)| end as usize <= packet.len()));
    }
    if let Dissected::ErrorAbout(tuple) = seen {
        assert_eq!(tuple.source(), head.destination, "an error is about what its receiver has sent");
    }
    let mut answer = [0; RESET_MAX];
    let len = reset(packet, &mut answer);
    if len > 0 {
        let back = IpHead::parse(&answer[..len]).expect("a reset is a packet");
        assert_eq!((back.source, back.destination, back.len), (head.destination, head.source, len));
        let Dissected::Packet { tuple, role: Role::Resets, fragment: None } = look(&answer[..len]) else {
            panic!("a reset is one")
        };
        if let Dissected::Packet { tuple: refused, .. } = seen {
            assert_eq!(tuple, refused.reversed());
        }
        assert_eq!(reset(&answer[..len], &mut [0; RESET_MAX]), 0);
    }
    if icmp::may_answer(packet, &head) {
        let mut error = [0; icmp::MAX_LEN];
        let len = icmp::prohibited(packet, &head, &mut error);
        let back = IpHead::parse(&error[..len]).expect("an error is a packet");
        assert!(!icmp::may_answer(&error[..len], &back));
        // Whole packets that are not ICMP errors have a flow, and the error names it.
        if let (Dissected::Packet { tuple, fragment: None, role }, true) = (seen, len < 576)
            && role != Role::Alone
        {
            assert_eq!(look(&error[..len]), Dissected::ErrorAbout(tuple));
        }
    }
}
