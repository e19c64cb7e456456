//! Fields of fixed length at fixed places.

/// The `N` bytes from `at` on.
///
/// # Panics
/// When they do not lie inside: the length is checked earlier, when the bytes arrive.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("the length was checked where the bytes entered")
}

/// Writes a field at `at`.
///
/// # Panics
/// When it does not lie inside.
pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}
