//! Checks whether words may be names of peers, and guesses the meaning of unexpected words.

/// The longest name of a peer, in characters. It fits into a column of a table on a terminal.
pub(super) const MAX_NAME: usize = 63;

/// Names appear on terminals, in logs and in lines of the UAPI, so they must not contain characters that control any of
/// these.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || " -_.@+:/()'".contains(c);
    (1..=MAX_NAME).contains(&text.chars().count()) && text.chars().all(allowed) && text.trim() == text
}

/// The candidate that `text` most likely means.
pub(super) fn nearest<'k>(text: &str, candidates: &[&'k str]) -> Option<&'k str> {
    let lower = text.to_ascii_lowercase();
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_ascii_lowercase()), *candidate))
        .min()
        .filter(|&(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .map(|(_, candidate)| candidate)
}
