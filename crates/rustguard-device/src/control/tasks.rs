//! Scheduled work for single peers: one agenda for all of it, with one deadline and one place where a peer is
//! forgotten.
//!
//! Each feature of a peer has a kind of task here. It sets when the task is due, and is then called by
//! [`task_due`](Control::task_due).

use super::{Control, timer::now};
use rustguard_core::{agenda::Agenda, node::PeerId, time::Instant};

/// The number of tasks that are carried out in one turn. The rest stay due, and other messages come in between.
const SLICE: usize = 64;

/// A kind of work for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Probes and choice of its paths.
    Paths,
    /// Probes of its path MTU.
    PathMtu,
    /// Offers of parities.
    Fec,
    /// The negotiation of lanes.
    Lanes,
    /// The initiation that goes to other addresses too.
    HappyEyeballs,
    /// The question at which address the peer sees this node.
    Observer,
}

impl Task {
    const FIRST: Self = Self::Paths;
    const LAST: Self = Self::Observer;
}

/// When each task of each peer is due.
#[derive(Default)]
pub(super) struct Tasks(Agenda<(PeerId, Task)>);

impl Tasks {
    /// Sets when a task is due for a peer, if it is to be due at all.
    pub(super) fn plan(&mut self, peer: PeerId, task: Task, at: Option<Instant>) {
        self.0.plan((peer, task), at);
    }

    pub(super) fn set(&mut self, peer: PeerId, task: Task, at: Instant) {
        self.0.set((peer, task), at);
    }

    /// Cancels a task. Returns whether it was planned.
    pub(super) fn cancel(&mut self, peer: PeerId, task: Task) -> bool {
        self.0.remove(&(peer, task)).is_some()
    }

    /// The peer is gone.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.0.remove_range((peer, Task::FIRST)..=(peer, Task::LAST));
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }
}

impl Control {
    /// Carries out the tasks that are due, in slices.
    pub(super) fn carry_out_tasks(&mut self) {
        let instant = now().instant;
        for _ in 0..SLICE {
            let Some((peer, task)) = self.tasks.0.take_due(instant) else { break };
            self.task_due(peer, task, instant);
        }
    }

    fn task_due(&mut self, peer: PeerId, task: Task, instant: Instant) {
        match task {
            Task::Paths => self.paths_due(peer, instant),
            Task::PathMtu => self.path_mtu_due(peer, instant),
            Task::Fec => self.fec_due(peer, instant),
            Task::Lanes => self.lanes_due(peer, instant),
            Task::HappyEyeballs => self.next_address_due(peer, instant),
            Task::Observer => self.observer_due(peer, instant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_gone_leaves_no_task() {
        let (mut tasks, other) = (Tasks::default(), PeerId(2));
        let all = [Task::Paths, Task::PathMtu, Task::Fec, Task::Lanes, Task::HappyEyeballs, Task::Observer];
        for (n, task) in (1..).zip(all) {
            for peer in [PeerId(1), other, PeerId(3)] {
                tasks.set(peer, task, Instant::from_nanos(n));
            }
        }
        tasks.forget(PeerId(1));
        tasks.forget(PeerId(3));
        assert!(tasks.0.keys().copied().eq(all.map(|task| (other, task))));
        assert_eq!(tasks.deadline(), Some(Instant::from_nanos(1)));
        assert!(tasks.cancel(other, Task::Paths) && !tasks.cancel(other, Task::Paths));
    }
}
