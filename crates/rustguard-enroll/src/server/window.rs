//! The window: for how long, with what secret, and how many guesses are left.
use super::options::WindowStatus;
use crate::{limits::Rate, pake::WindowSecret};
use core::time::Duration;
use rustguard_core::{cookie::Checker, time::Instant};

/// Guesses that a window allows. A right guess is given back.
pub const MAX_ATTEMPTS: u32 = 5;
/// Joiners of one window that may ask for approval. Each one gives a man in the middle who knows the secret another chance that the
/// digits at the server equal those at the joiner.
pub const MAX_ASKING: u32 = 32;
/// Shares answered: 10 a second.
pub(crate) const SHARES: Rate = Rate { interval: Duration::from_millis(100), burst: 10 };

/// An open window. Its secret is wiped when it closes.
pub(crate) struct Window {
    /// Tells sessions of this window from those of another one.
    pub(crate) serial: u64,
    pub(crate) secret: WindowSecret,
    pub(crate) checker: Checker,
    pub(crate) until: Instant,
    pub(crate) approve: bool,
    pub(crate) attempts_left: u32,
    pub(crate) joined: u32,
    /// How often approval was asked for.
    pub(crate) asked: u32,
}

impl Window {
    pub(crate) fn status(&self) -> WindowStatus {
        WindowStatus {
            until: self.until,
            code: matches!(self.secret, WindowSecret::Code(_)),
            approve: self.approve,
            attempts_left: self.attempts_left,
            joined: self.joined,
        }
    }
}
