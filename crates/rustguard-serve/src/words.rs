//! Words that messages of this crate share.

use rustguard_enroll::lease::Lease;

/// The most names in one message.
const LISTED: usize = 8;

/// The name of a machine, or its public key if it has none.
pub(crate) fn called(lease: &Lease) -> String {
    lease.name.clone().unwrap_or_else(|| lease.public_key.to_string())
}

/// All values, or "none".
pub(crate) fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let words: Vec<_> = values.into_iter().map(|value| value.to_string()).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// The first of these names, and how many more there are; `None` if there are none.
pub(crate) fn first(names: impl IntoIterator<Item = String>) -> Option<String> {
    let names: Vec<_> = names.into_iter().collect();
    let more = names.len().saturating_sub(LISTED);
    let listed = names[..names.len() - more].join(", ");
    match more {
        _ if names.is_empty() => None,
        0 => Some(listed),
        more => Some(format!("{listed} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut() {
        let names = |count: usize| (0..count).map(|n| n.to_string());
        assert_eq!((first(names(0)), list(names(0))), (None, "none".to_owned()));
        assert_eq!(first(names(8)).as_deref(), Some("0, 1, 2, 3, 4, 5, 6, 7"));
        assert_eq!(first(names(10)).as_deref(), Some("0, 1, 2, 3, 4, 5, 6, 7 and 2 more"));
    }
}
