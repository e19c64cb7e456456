//! The code of the window that was opened from this page. The server itself does not reveal it again.

use rustguard_serve::request::{Secret, WindowView};
use std::time::Duration;

/// How much the end of the window may differ from the end of the one that was opened here.
const SLACK: Duration = Duration::from_secs(2);

/// The code, and when it expires.
#[derive(Clone, Debug)]
pub(crate) struct OpenCode {
    code: Secret,
    until: Duration,
}

impl OpenCode {
    /// The code of a window that stays open for this many seconds. `now` is the time since the machine's start.
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
