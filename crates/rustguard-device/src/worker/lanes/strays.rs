//! Moves floods that nobody answers to a separate lane.
//!
//! The kernel puts a flow into the lane through which the last packet of that flow came to the host. For a flow that
//! nobody answers, the kernel chooses a lane by its hash (`tun_automq_select_queue`). A flood then fills a queue that
//! other flows use, and the kernel drops packets of these flows.
//!
//! The kernel learns the lane of a flow from packets that are written into a lane (`tun_flow_update`). It looks only at
//! addresses, protocol and ports, whose hash is the same in both directions (`__skb_get_hash_symmetric`). So writing a
//! header of the other direction into the last lane moves the flow there; nothing else is written into that lane. The
//! header claims that the packet is longer, so the host drops it (`ip_rcv_core`, `ip6_rcv_core`) before netfilter,
//! routing or a socket sees it. It is visible in packet captures, in the interface's received packets, and as
//! IpExtInTruncatedPkts or Ip6InTruncatedPkts.
//!
//! The kernel forgets a flow after three seconds (`TUN_FLOW_EXPIRE`). Floods are moved again ten times a second, at
//! most eight of them. An answer moves its flow back to the flow's own lane.

use crate::worker::busiest::Busiest;
use rustguard_core::{flow, packet::IpHead, time::Instant};
use std::{mem, net::IpAddr, time::Duration};

/// One of this many packets in a lane is examined.
const SAMPLE: usize = 16;
/// Bytes of a packet that the kernel may need for its hash: the longest IPv4 header and ports, or an IPv6 header and
/// some extensions.
const HEADER: usize = 128;
/// If a busy flow in its own lane has no answer for this time, the kernel has chosen that lane by its hash.
const PATIENCE: Duration = Duration::from_millis(250);
/// Another flow may be suspected after this time.
const SUSPECTED: Duration = Duration::from_secs(1);

/// The flows of the host's packets that are examined.
pub(super) struct Strays {
    /// Packets of each lane since the last one that was examined.
    unseen: Box<[usize]>,
    busiest: Busiest<u64>,
    suspect: Option<Suspect>,
    header: [u8; HEADER],
}

/// A busy flow in its own lane that was not answered since `since`.
struct Suspect {
    /// The hash with ports. A flow without ports is recognised by `ends` alone.
    flow: Option<u32>,
    ends: Ends,
    since: Instant,
}

/// Two addresses in numeric order, and a protocol.
type Ends = (IpAddr, IpAddr, u8);

impl Strays {
    pub(super) fn new(lanes: usize) -> Self {
        Self { unseen: vec![0; lanes].into(), busiest: Busiest::default(), suspect: None, header: [0; HEADER] }
    }

    /// Counts packets that were read from a lane. Returns whether the first one is to be [examined](Self::look).
    #[inline]
    pub(super) fn is_due(&mut self, lane: usize, packets: usize) -> bool {
        self.unseen[lane] += packets;
        self.unseen[lane] >= SAMPLE
    }

    /// Examines a packet from a lane; `own` is the lane in which its flow belongs. If the flow is to be moved, returns
    /// the header that moves it to the lane into which the header is written.
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

    /// Whether the packet's flow has had no answer since the first call for it, and long enough.
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
    /// header stays correct: otherwise the host would count another error.
    fn turned(&mut self, packet: &[u8]) -> &mut [u8] {
        let len = packet.len().min(HEADER);
        let header = &mut self.header[..len];
        header.copy_from_slice(&packet[..len]);
        let ports = if header[0] >> 4 == 4 {
            // Exchanging words does not change the sum, and adding 0xffff does not either (RFC 1624).
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
