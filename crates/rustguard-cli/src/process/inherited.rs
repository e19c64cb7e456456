//! Values from the environment that this process must not pass on. Hooks and other children inherit the environment.

use anyhow::{Context as _, Result, anyhow};
use rustguard_tun::environment;
use std::sync::OnceLock;
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

/// Takes both variables out of the environment. Has to be called first, because it is impossible while other threads
/// exist.
pub(crate) fn take() -> Result<()> {
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
