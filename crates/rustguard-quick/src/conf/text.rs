//! Texts of configuration files, which other programs have written.

use zeroize::Zeroizing;

/// The text of a file. Bytes that are no UTF-8 are characters of Latin-1, as in comments that were written before UTF-8: wg and wg-quick take
/// no notice of them. Elsewhere, no key and no value has such characters.
pub(super) fn decode(bytes: Zeroizing<Vec<u8>>) -> Zeroizing<String> {
    // No copy is left of what holds keys.
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().copied().map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_utf8_is_latin_1() {
        let decode = |bytes: &[u8]| decode(Zeroizing::new(bytes.to_vec())).to_string();
        assert_eq!(decode("# Büro\n".as_bytes()), "# Büro\n");
        assert_eq!(decode(b"# B\xfcro, \xff\n[Peer]"), "# Büro, ÿ\n[Peer]");
        assert_eq!(decode(&[0xc3]), "Ã", "half a character");
        assert_eq!(decode(b""), "");
    }
}
