//! Why a text is not a token.
use super::limits::{MAX_ENDPOINT, MAX_PASSPHRASE, MIN_PASSPHRASE};

/// Why a text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The text is empty.
    #[error("the token is empty; paste the invite, code or passphrase that the server shows")]
    Empty,
    /// An invite that was cut short, or has characters that are not base32.
    #[error("the invite is damaged: it is cut short, or has characters that no invite has; paste it again, all of it")]
    InviteForm,
    /// An invite with a wrong checksum.
    #[error("the invite was mistyped: its checksum does not match; paste it again, all of it")]
    InviteChecksum,
    /// An invite of a version that this program does not know.
    #[error("the invite is of version {0}, which this program does not know; update RustGuard on this machine")]
    InviteVersion(u8),
    /// An endpoint that does not fit into an invite.
    #[error("the endpoint of an invite has 1 to {MAX_ENDPOINT} bytes without spaces")]
    Endpoint,
    /// A code with characters that codes do not use.
    #[error("the code was mistyped: codes have digits and letters, but no U")]
    CodeForm,
    /// A code whose check symbol does not match.
    #[error("the code was mistyped: its check symbol does not match; compare it with what the server shows")]
    CodeChecksum,
    /// A passphrase that is too short or too long.
    #[error(
        "this is no invite and no code (`XXXX-XXXX`), and as a passphrase it would need {MIN_PASSPHRASE} to {MAX_PASSPHRASE} bytes; paste what the \
         server shows, all of it"
    )]
    PassphraseLength,
    /// A passphrase with the form of an invite or a code.
    #[error("the passphrase looks like an invite or a code and would be taken for one; choose another")]
    PassphraseAmbiguous,
}
