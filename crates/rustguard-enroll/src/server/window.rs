//! The window: its duration, its secret, and the number of guesses left.
use super::options::WindowStatus;
use crate::{limits::Rate, pake::WindowSecret};
use core::time::Duration;
use rustguard_core::{cookie::Checker, time::Instant};

/// The number of guesses that a window permits. A correct guess is given back.
pub const MAX_ATTEMPTS: u32 = 5;
/// The number of joiners of one window that may ask for approval. Each of them gives a man in the middle who knows the
/// secret another chance that the server and the joiner show the same digits.
pub const MAX_ASKING: u32 = 32;
/// The rate of answered shares: 10 a second.
pub(crate) const SHARES: Rate = Rate { interval: Duration::from_millis(100), burst: 10 };

/// An open window. Its secret is wiped when it closes.
pub(crate) struct Window {
    /// Distinguishes sessions of this window from those of another one.
    pub(crate) serial: u64,
    pub(crate) secret: WindowSecret,
    pub(crate) checker: Checker,
    pub(crate) until: Instant,
    pub(crate) approve: bool,
    pub(crate) attempts_left: u32,
    pub(crate) joined: u32,
    /// The number of requests for approval.
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
