//! Takes an edited configuration over into a running tunnel: all of it, or nothing, and without losing a session.
//!
//! [`Difference`] describes the changes from one configuration to another. [`Session::reload`](crate::Session::reload)
//! makes the changes. Everything that can be checked is checked first, then the host and the device change step by
//! step, and if a step fails, the earlier ones are undone. [`Server`] is the socket over which `rustguard reload` asks
//! the process of a tunnel for a reload.
//!
//! ```
//! use rustguard_quick::{conf, reload::Difference};
//!
//! # let key = "PrivateKey = OBGBXk5Oo38YXxMMBCUzBkLS1Xpr2Wn8HgXKJTHmS3U=";
//! let (old, _) = conf::parse(&format!("[Interface]\n{key}\nAddress = 10.0.0.1/24\n"));
//! let (new, _) = conf::parse(&format!("[Interface]\n{key}\nAddress = 10.0.0.1/24\nMTU = 1380\n"));
//! let difference = Difference::between(&old.unwrap(), &new.unwrap());
//! let lines: Vec<String> = difference.lines().iter().map(ToString::to_string).collect();
//! assert_eq!(lines, ["~ MTU automatic → 1380"]);
//! ```

mod apply;
mod difference;
mod error;
mod restart;
mod socket;
#[cfg(test)]
mod tests;
mod update;
mod words;

pub use difference::{Changed, Difference, Nets};
pub use error::ReloadError;
pub use restart::NeedsRestart;
pub use socket::{Answer, AskError, Pending, Reload, Request, Server, ask};
pub use words::{Action, Line};
