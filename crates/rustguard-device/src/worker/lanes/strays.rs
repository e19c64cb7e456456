//! Floods that nobody answers, moved to a lane of their own.
//!
//! A flow has the lane through which its last packet came to the host. A flow that nobody answers has none: the kernel
//! puts it into any, by its hash (`tun_automq_select_queue`). A flood then fills a queue that others have, and the
//! kernel drops what these send before it is read here.
//!
//! The kernel learns the lane of a flow from what is written into a lane (`tun_flow_update`). Of that it looks at
//! addresses, protocol and ports only, whose hash is the same in both directions (`__skb_get_hash_symmetric`). So a
//! header of the other direction, written into the last lane, moves the flow there; nothing else is written into that
//! lane. The header claims to be of a longer packet, so the host drops it first of all (`ip_rcv_core`, `ip6_rcv_core`),
//! before netfilter, routing or a socket sees it. It shows in packet captures, in the interface's received packets, and
//! as IpExtInTruncatedPkts or Ip6InTruncatedPkts.
//!
//! The kernel forgets a flow after three seconds (`TUN_FLOW_EXPIRE`). Floods are moved again ten times a second, at
//! most eight of them. An answer takes its flow back to the flow's own lane.

use crate::worker::busiest::Busiest;
use rustguard_core::{flow, packet::IpHead, time::Instant};
use std::{mem, net::IpAddr, time::Duration};

/// Of so many packets in a lane, one is looked at.
const SAMPLE: usize = 16;
/// Bytes of a packet that the kernel may need for its hash: the longest IPv4 header and ports, or an IPv6 header and
/// some extensions.
const HEADER: usize = 128;
/// A busy flow that is in its own lane, and that nothing answers for so long, is there by the kernel's hash.
const PATIENCE: Duration = Duration::from_millis(250);
/// Another flow may be suspected after so long.
const SUSPECTED: Duration = Duration::from_secs(1);

/// The flows of the host's packets, as far as they are looked at.
pub(super) struct Strays {
    /// Packets of each lane since the last one that was looked at.
    unseen: Box<[usize]>,
    busiest: Busiest<u64>,
    suspect: Option<Suspect>,
    header: [u8; HEADER],
}

/// A busy flow that is in its own lane, and that was not answered since a moment.
struct Suspect {
    /// By its ports; what has none is known by the rest.
    flow: Option<u32>,
    ends: Ends,
    since: Instant,
}

/// Two addresses in the order of their numbers, and a protocol.
type Ends = (IpAddr, IpAddr, u8);

impl Strays {
    pub(super) fn new(lanes: usize) -> Self {
        Self { unseen: vec![0; lanes].into(), busiest: Busiest::default(), suspect: None, header: [0; HEADER] }
    }

    /// Counts packets that were read from a lane. Returns whether the first of them is to be [looked at](Self::look).
    #[inline]
    pub(super) fn is_due(&mut self, lane: usize, packets: usize) -> bool {
        self.unseen[lane] += packets;
        self.unseen[lane] >= SAMPLE
    }

    /// Looks at a packet from a lane; `own` is the lane in which its flow belongs. Returns what moves the flow to the
    /// lane that it is written to, where that is called for.
    pub(super) fn look(&mut self, packet: &[u8], lane: usize, own: usize, now: Instant) -> Option<&mut [u8]> {
        let packets = mem::take(&mut self.unseen[lane]);
        let head = IpHead::parse(packet)?;
        let moves = self.busiest.count(flow::hash(packet, &head), packets, now)
            && (lane != own || self.is_unanswered(packet, ends(packet, &head), now));
        moves.then(|| self.turned(packet))
    }

    /// A packet goes to the host. `flow` is its [hash](flow::symmetric_hash).
    #[inline]
    pub(super) fn answered(&mut self, packet: &[u8], flow: Option<u32>) {
        if self.suspect.as_ref().is_some_and(|suspect| suspect.flow == flow)
            && let Some(head) = IpHead::parse(packet)
        {
            let ends = ends(packet, &head);
            self.suspect.take_if(|suspect| suspect.ends == ends);
        }
    }

    /// Whether nothing has come of the packet's flow since it was first asked for.
    fn is_unanswered(&mut self, packet: &[u8], ends: Ends, now: Instant) -> bool {
        let flow = flow::symmetric_hash(packet);
        match &self.suspect {
            Some(suspect) if suspect.flow == flow && suspect.ends == ends => {
                self.suspect.take_if(|suspect| now.since(suspect.since) >= PATIENCE).is_some()
            }
            Some(suspect) if now.since(suspect.since) < SUSPECTED => false,
            _ => {
                self.suspect = Some(Suspect { flow, ends, since: now });
                false
            }
        }
    }

    /// The start of a packet of the other direction, which claims to be longer than it is. The checksum of an IPv4
    /// header stays sound: the host would count another error.
    fn turned(&mut self, packet: &[u8]) -> &mut [u8] {
        let len = packet.len().min(HEADER);
        let header = &mut self.header[..len];
        header.copy_from_slice(&packet[..len]);
        let ports = if header[0] >> 4 == 4 {
            // Words that change places leave the sum as it is, and 0xffff adds nothing to it (RFC 1624).
            let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
            let sum = u32::from(!word(2)) + u32::from(!word(10));
            let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            header[2..4].fill(0xff);
            header[12..20].rotate_left(4);
            usize::from(header[0] & 0x0f) * 4
        } else {
            header[4..6].fill(0xff);
            header[8..40].rotate_left(16);
            40
        };
        if flow::symmetric_hash(packet).is_some()
            && let Some(ports) = header.get_mut(ports..ports + 4)
        {
            ports.rotate_left(2);
        }
        header
    }
}

fn ends(packet: &[u8], head: &IpHead) -> Ends {
    let IpHead { source, destination, .. } = *head;
    let protocol = if source.is_ipv4() { packet[9] } else { packet[6] };
    (source.min(destination), source.max(destination), protocol)
}

#[cfg(test)]
mod tests;
