//! A worker's part of the enforcement: a cache of recent flows, so that a further packet of a flow costs one
//! comparison.

use super::{
    Scope,
    conntrack::Asked,
    fragments::Fragments,
    refusals::{Reason, Refused},
    seat::InForce,
};
use rustguard_core::{
    dissect::{Dissected, Role, Tuple, dissect},
    node::PeerId,
    packet::IpHead,
    time::Instant,
};
use std::time::Duration;

/// Flows that a worker remembers in each direction.
const RECENT: usize = 64;
/// Flows are not looked up again for this time. The shortest timeout of the table is ten times as long.
const FRESH: Duration = Duration::from_secs(1);

/// The cache for one direction of a worker. It has no memory before the first packet that is judged.
#[derive(Default)]
pub(crate) struct Gate {
    recent: Vec<Option<Recent>>,
    fragments: Option<Box<Fragments>>,
}

/// A flow that has passed, in one direction.
#[derive(Clone, Copy)]
struct Recent {
    tuple: Tuple,
    until: Instant,
    generation: u32,
    /// The destination of its packets, if this device does not judge them. `None` if the flow is in the table.
    unjudged: Option<Scope>,
}

impl Gate {
    /// Whether a packet of a peer may pass. `packet` is without padding.
    ///
    /// # Errors
    /// The reason for the refusal.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        packet: &[u8],
        head: &IpHead,
        scope: Scope,
        peer: PeerId,
        in_force: &InForce,
        now: Instant,
    ) -> Result<(), Refused> {
        let seen = dissect(packet);
        if let Dissected::Packet { tuple, role: Role::Continues, fragment: None } = &seen
            && self.knows(tuple, scope, in_force, now)
        {
            return Ok(());
        }
        self.judge(&seen, head, scope, peer, in_force, now)
    }

    /// Notes a packet of the host.
    #[inline]
    pub(crate) fn sent(&mut self, packet: &[u8], in_force: &InForce, now: Instant) {
        // Only the first fragment of a packet is noted.
        let Dissected::Packet { tuple, role, .. } = dissect(packet) else { return };
        if role != Role::Continues || !self.knows(&tuple, Scope::Host, in_force, now) {
            self.note(&tuple, role, in_force, now);
        }
    }

    #[cold]
    fn note(&mut self, tuple: &Tuple, role: Role, in_force: &InForce, now: Instant) {
        let allows = |tuple: &Tuple| in_force.judge.allows(tuple);
        let asked = Asked { now, generation: in_force.generation, allows: &allows };
        in_force.table.sent(tuple, role, &asked);
        self.remember(tuple, role, None, in_force, now);
    }

    #[cold]
    fn judge(
        &mut self,
        seen: &Dissected,
        head: &IpHead,
        scope: Scope,
        peer: PeerId,
        in_force: &InForce,
        now: Instant,
    ) -> Result<(), Refused> {
        if in_force.judge.is_for_others(head, scope) {
            if let Dissected::Packet { tuple, role, .. } = seen {
                self.remember(tuple, *role, Some(scope), in_force, now);
            }
            return Ok(());
        }
        let generation = in_force.generation;
        let allows = |tuple: &Tuple| in_force.judge.allows(tuple);
        let asked = Asked { now, generation, allows: &allows };
        let refused = |reason| Refused { reason, protocol: 0, port: None };
        match seen {
            Dissected::Packet { tuple, role, fragment } => {
                let passes = in_force.table.received(peer, tuple, *role, &asked);
                if let Some((id, end)) = fragment {
                    self.fragments.get_or_insert_default().first(peer, *id, *end, passes, generation, now);
                }
                if !passes {
                    let (protocol, port) = (tuple.protocol, tuple.destination_port());
                    return Err(Refused { reason: Reason::NotAllowed, protocol, port });
                }
                self.remember(tuple, *role, None, in_force, now);
                Ok(())
            }
            Dissected::Later(id, offset) => {
                let known = |it: &mut Box<Fragments>| it.later(peer, *id, *offset, generation, now);
                let passes = self.fragments.as_mut().is_some_and(known);
                passes.then_some(()).ok_or(Refused { protocol: id.protocol, ..refused(Reason::Fragment) })
            }
            Dissected::ErrorAbout(tuple) if in_force.table.knows(tuple, &asked) => Ok(()),
            Dissected::ErrorAbout(tuple) => {
                Err(Refused { protocol: if tuple.v6 { ICMPV6 } else { ICMP }, ..refused(Reason::UnknownFlow) })
            }
            Dissected::Bad(bad) => Err(refused(Reason::Bad(*bad))),
        }
    }

    #[inline]
    fn knows(&self, tuple: &Tuple, scope: Scope, in_force: &InForce, now: Instant) -> bool {
        matches!(self.recent.get(place(tuple)), Some(Some(recent))
            if recent.tuple == *tuple
                && recent.generation == in_force.generation
                && now < recent.until
                && recent.unjudged.is_none_or(|unjudged| unjudged == scope))
    }

    fn remember(&mut self, tuple: &Tuple, role: Role, unjudged: Option<Scope>, in_force: &InForce, now: Instant) {
        if self.recent.is_empty() {
            self.recent.resize(RECENT, None);
        }
        // The table has to see packets that end a flow, and the packets after them.
        let recent = Recent { tuple: *tuple, until: now + FRESH, generation: in_force.generation, unjudged };
        self.recent[place(tuple)] = (role == Role::Continues).then_some(recent);
    }
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The place of a flow. Flows with the same place replace each other and are looked up in the table.
#[inline]
fn place(tuple: &Tuple) -> usize {
    let [from, to] = tuple.ends.map(|end| end as u64 ^ (end >> 64) as u64);
    let ports = u64::from(tuple.ports[0]) << 16 | u64::from(tuple.ports[1]);
    let mixed = (from ^ to.rotate_left(32) ^ ports.rotate_left(13)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 58) as usize
}

#[cfg(test)]
mod tests;
