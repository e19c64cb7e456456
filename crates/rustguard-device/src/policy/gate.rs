//! A worker's part of the enforcement: what it has seen last, so that a packet of a flow that goes on costs a
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
/// So long they need not be looked up again. The shortest limit of the table is ten times as long.
const FRESH: Duration = Duration::from_secs(1);

/// What one direction of a worker remembers. It has no memory before the first packet that is judged.
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
    /// Where its packets go. `None`, where it is the table that knows the flow.
    unjudged: Option<Scope>,
}

impl Gate {
    /// Whether a packet of a peer's may pass. `packet` is without padding.
    ///
    /// # Errors
    /// Why not.
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

    /// Notes a packet of the host's.
    #[inline]
    pub(crate) fn sent(&mut self, packet: &[u8], in_force: &InForce, now: Instant) {
        // A first fragment stands for the others.
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
        // What ends a flow has to be seen by the table, and so has what comes next.
        let recent = Recent { tuple: *tuple, until: now + FRESH, generation: in_force.generation, unjudged };
        self.recent[place(tuple)] = (role == Role::Continues).then_some(recent);
    }
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Where a flow is remembered. Flows that meet here are looked up in the table.
#[inline]
fn place(tuple: &Tuple) -> usize {
    let [from, to] = tuple.ends.map(|end| end as u64 ^ (end >> 64) as u64);
    let ports = u64::from(tuple.ports[0]) << 16 | u64::from(tuple.ports[1]);
    let mixed = (from ^ to.rotate_left(32) ^ ports.rotate_left(13)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 58) as usize
}

#[cfg(test)]
mod tests;
