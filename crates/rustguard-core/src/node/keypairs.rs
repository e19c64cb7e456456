//! The three sessions that a peer may have at once.
use crate::{session::Sealer, sync::Arc};

/// A session: the index of its opener, and its sealer.
pub(crate) struct Keypair {
    pub(crate) index: u32,
    pub(crate) sealer: Arc<Sealer>,
}

/// The kernel's three slots. Packets are sealed with `current`; received packets may use any.
#[derive(Default)]
pub(crate) struct Keypairs {
    previous: Option<Keypair>,
    current: Option<Keypair>,
    /// Made by our response: the initiator has to use it first, which proves that it received the response.
    next: Option<Keypair>,
}

/// Keypairs that a rotation pushed out.
pub(crate) type Retired = [Option<Keypair>; 2];

impl Keypairs {
    /// Our initiation was answered: the new keypair is used at once.
    ///
    /// A keypair that waits for its confirmation may still get it, from an initiator whose packets are in flight: it
    /// takes the place of the previous one, and the current one is retired.
    pub(crate) fn install_initiated(&mut self, new: Keypair) -> Retired {
        let current = self.current.replace(new);
        match self.next.take() {
            Some(next) => [current, self.previous.replace(next)],
            None => [core::mem::replace(&mut self.previous, current), None],
        }
    }

    /// We answered: the new keypair waits for its confirmation.
    pub(crate) fn install_responded(&mut self, new: Keypair) -> Retired {
        [self.previous.take(), self.next.replace(new)]
    }

    /// Whether this is the keypair that waits for its confirmation.
    pub(crate) fn awaits(&self, index: u32) -> bool {
        self.next.as_ref().is_some_and(|next| next.index == index)
    }

    /// The next keypair is confirmed and becomes the current one.
    pub(crate) fn confirm(&mut self) -> Option<Keypair> {
        let next = self.next.take()?;
        let current = self.current.replace(next);
        core::mem::replace(&mut self.previous, current)
    }

    /// The sealer in use, regardless of its age.
    pub(crate) fn sealer(&self) -> Option<&Arc<Sealer>> {
        self.current.as_ref().map(|keypair| &keypair.sealer)
    }

    /// Empties all slots.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Keypair> + use<> {
        [self.previous.take(), self.current.take(), self.next.take()].into_iter().flatten()
    }
}
