//! Why a log could not be read or written.

/// The longest time for one request. A store that answers within two seconds is slow, and works.
#[cfg(any(feature = "etcd", feature = "postgres"))]
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Why a log could not be read or written. Each message names the store, the cause and, where there is one, the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The store does not answer, or not in time. Whether it has carried out the request is not known.
    #[error("{store} does not answer: {cause}")]
    Unavailable {
        /// The store and the log in it.
        store: String,
        /// The failure.
        cause: String,
    },
    /// The store is full. Whether it has carried out the request is not known: etcd carries out the one with which it
    /// gets full, and says that it is full.
    #[error("{store} is full: {cause}; {remedy}")]
    Full {
        /// The store and the log in it.
        store: String,
        /// The store's answer.
        cause: String,
        /// The remedy for the administrator.
        remedy: String,
    },
    /// The store answers that it does not carry out the request.
    #[error("{store} refuses the request: {cause}{}", said(remedy))]
    Refused {
        /// The store and the log in it.
        store: String,
        /// The store's answer.
        cause: String,
        /// The remedy for the administrator.
        remedy: String,
    },
    /// The place of the log holds other data.
    #[error("{store} holds other data ({example}), and no log of a network; give a place that is empty")]
    Foreign {
        /// The store and the log in it.
        store: String,
        /// Something of the data.
        example: String,
    },
    /// Another version of the program made the log.
    #[error("the log in {store} has format {found}, and this program knows format {known}; use a newer program")]
    Version {
        /// The store and the log in it.
        store: String,
        /// The format of the log.
        found: String,
        /// The newest format that this program knows.
        known: u32,
    },
    /// The log contradicts itself.
    #[error("the log in {store} is damaged: {cause}; restore the store from a backup of its own")]
    Damaged {
        /// The store and the log in it.
        store: String,
        /// The contradiction.
        cause: String,
    },
    /// An entry or a snapshot is larger than a store takes.
    #[error("{what} of {len} bytes is too large for a store, which takes {limit}")]
    TooLarge {
        /// The kind of data.
        what: &'static str,
        /// Its length, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The log ends before a record that this server has seen.
    #[error(
        "{store} ends at record {last}, and this server has seen record {seen}: the store was restored from an older \
         backup, or it is another one; restore a newer backup of the store, or go on without what was decided since \
         (rustguard serve --accept-older-store)"
    )]
    RolledBack {
        /// The store and the log in it.
        store: String,
        /// The revision that this server has seen.
        seen: u64,
        /// The revision of the last record now.
        last: u64,
    },
    /// The log has another record where this server has seen one.
    #[error(
        "{store} has another record {revision} than the one that this server has seen: the store was restored from an \
         older backup and has gone on since, or it is another one; restore a newer backup of the store, or go on \
         without what was decided since (rustguard serve --accept-older-store)"
    )]
    Forked {
        /// The store and the log in it.
        store: String,
        /// The revision of the record.
        revision: u64,
    },
    /// A record or a snapshot was not sealed with this key.
    #[error(
        "{what} in {store} was not made with this store key: the log belongs to another network, or somebody has \
         changed it"
    )]
    Forged {
        /// The store and the log in it.
        store: String,
        /// The record or the snapshot.
        what: String,
    },
}

impl LogError {
    /// Whether the request may have been carried out, or may yet be.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Full { .. })
    }

    #[cfg(any(feature = "etcd", feature = "postgres"))]
    pub(crate) fn unavailable(store: &str, cause: impl ToString) -> Self {
        Self::Unavailable { store: store.to_owned(), cause: cause.to_string() }
    }

    #[cfg(any(feature = "etcd", feature = "postgres"))]
    pub(crate) fn late(store: &str, patience: std::time::Duration) -> Self {
        Self::unavailable(store, format!("no answer within {} seconds", patience.as_secs()))
    }

    #[cfg(any(feature = "etcd", feature = "postgres"))]
    pub(crate) fn refused(store: &str, cause: impl ToString, remedy: impl Into<String>) -> Self {
        Self::Refused { store: store.to_owned(), cause: cause.to_string(), remedy: remedy.into() }
    }
}

fn said(remedy: &str) -> String {
    if remedy.is_empty() { String::new() } else { format!("; {remedy}") }
}

/// An error with its causes. Errors of networking libraries often leave them out of their own message.
#[cfg(any(feature = "etcd", feature = "postgres"))]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}
