//! Texts of configuration files, which other programs have written.

use zeroize::Zeroizing;

/// The number of the first line that has bytes which are no UTF-8 and stand in no comment. A command with them would be another one.
pub fn not_text(bytes: &[u8]) -> Option<usize> {
    let is_text =
        |line: &[u8]| std::str::from_utf8(line.split(|byte| *byte == b'#').next().unwrap_or_default()).is_ok();
    bytes.split(|byte| *byte == b'\n').position(|line| !is_text(line)).map(|before| before + 1)
}

/// The text of a file. Bytes that are no UTF-8 are characters of Latin-1, as in comments that were written before UTF-8: wg and wg-quick take
/// no notice of them. Elsewhere, no key and no value has such characters.
pub fn decode(bytes: Zeroizing<Vec<u8>>) -> Zeroizing<String> {
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
    fn comments_alone_may_be_no_utf8() {
        assert_eq!(not_text(b"# B\xfcro\n[Interface] # \xff\n"), None);
        assert_eq!(not_text(b"[Interface]\nPostUp = touch \xff # x\n"), Some(2));
        assert_eq!(not_text("PostUp = ü\n".as_bytes()), None);
    }

    #[test]
    fn what_is_no_utf8_is_latin_1() {
        let decode = |bytes: &[u8]| decode(Zeroizing::new(bytes.to_vec())).to_string();
        assert_eq!(decode("# Büro\n".as_bytes()), "# Büro\n");
        assert_eq!(decode(b"# B\xfcro, \xff\n[Peer]"), "# Büro, ÿ\n[Peer]");
        assert_eq!(decode(&[0xc3]), "Ã", "half a character");
        assert_eq!(decode(b""), "");
    }
}
