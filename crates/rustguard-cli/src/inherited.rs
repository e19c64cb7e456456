//! Things that this process inherits and must not keep or pass on: values in the environment, which hooks and other
//! children would inherit, and open files.

use anyhow::{Context as _, Result, anyhow};
use rustguard_tun::environment;
use std::{ffi::OsStr, os::fd::RawFd, sync::OnceLock};
use zeroize::Zeroizing;

/// The token of `serve` and `join`.
pub(crate) const TOKEN: &str = "RUSTGUARD_TOKEN";
/// Set for a child in the background: [`ALONE`] or [`WITH_TOKEN`].
pub(crate) const DETACHED: &str = "RUSTGUARD_DETACHED";
pub(crate) const ALONE: &str = "1";
/// The child reads its token from standard input.
pub(crate) const WITH_TOKEN: &str = "token";

#[derive(Default)]
struct Inherited {
    token: Option<Zeroizing<String>>,
    detached: Option<String>,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Removes both variables from the environment, and closes the files that the parent has left open. Has to be called
/// first, because it is impossible while other threads exist.
pub(crate) fn take() -> Result<()> {
    let named: Vec<_> = std::env::args_os().flat_map(|argument| files_in(&argument)).collect();
    // Without /proc, they stay open, as in any other program.
    let _ = environment::close_inherited(&named);
    let take = |name: &str| {
        let value = environment::take(name).with_context(|| {
            format!(
                "{name} cannot be removed from the environment, where hooks would find it; use --token-file instead"
            )
        })?;
        value.map(|value| value.into_string().map_err(|_| anyhow!("{name} is not UTF-8"))).transpose()
    };
    let inherited = Inherited { token: take(TOKEN)?.map(Zeroizing::new), detached: take(DETACHED)? };
    // This function is called only once.
    let _ = INHERITED.set(inherited);
    Ok(())
}

/// The open files that an argument names. A shell names such a file for `<(pass token)`, and passes it on purpose.
fn files_in(argument: &OsStr) -> Vec<RawFd> {
    let text = argument.to_string_lossy();
    let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let folders = ["/dev/fd/", "/proc/self/fd/"];
    folders.iter().flat_map(|folder| text.split(folder).skip(1).filter_map(number)).collect()
}

/// The token, if the environment had one.
pub(crate) fn token() -> Option<Zeroizing<String>> {
    INHERITED.get()?.token.clone()
}

/// Whether this process is a child in the background.
pub(crate) fn is_detached() -> bool {
    INHERITED.get().is_some_and(|inherited| inherited.detached.is_some())
}

/// Whether the parent of this process writes a token to its standard input.
pub(crate) fn brings_token() -> bool {
    INHERITED.get().is_some_and(|inherited| inherited.detached.as_deref() == Some(WITH_TOKEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_the_command_line_names_are_known() {
        let files = |argument: &str| files_in(argument.as_ref());
        assert_eq!(files("--token-file=/dev/fd/63"), [63]);
        assert_eq!(files("/proc/self/fd/7,/dev/fd/8"), [8, 7]);
        for none in ["/dev/fd/", "/dev/fd/99999999999999999999", "/etc/wireguard/wg0.conf"] {
            assert!(files(none).is_empty(), "{none}");
        }
    }
}
