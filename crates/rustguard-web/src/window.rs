//! The code of the window that was opened here. The server itself does not tell it a second time.

use rustguard_serve::request::{Secret, WindowView};
use std::time::Duration;

/// How far the end of the window may be from the one that was opened here.
const SLACK: Duration = Duration::from_secs(2);

/// The code, and until when it is good.
#[derive(Clone, Debug)]
pub(crate) struct OpenCode {
    code: Secret,
    until: Duration,
}

impl OpenCode {
    /// The code of a window that is open for so many seconds from now on. The time is that since the machine's start.
    pub(crate) fn new(code: Secret, seconds: u64, now: Duration) -> Self {
        Self { code, until: now + Duration::from_secs(seconds) }
    }

    /// Whether this window is the one that was opened here.
    pub(crate) fn is_of(&self, window: &WindowView, now: Duration) -> bool {
        (now + Duration::from_secs(window.seconds_left)).abs_diff(self.until) <= SLACK
    }

    pub(crate) fn reveal(&self) -> &str {
        self.code.reveal()
    }
}
