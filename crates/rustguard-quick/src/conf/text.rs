//! Texts of configuration files from other programs.

use std::io;
use zeroize::Zeroizing;

/// A line has bytes that are not UTF-8 outside of a comment. A command with other bytes would be another command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: not UTF-8, so not a configuration file")]
pub struct NotText {
    /// The number of the first such line.
    pub line: usize,
}

impl From<NotText> for io::Error {
    fn from(error: NotText) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// The text of a file. In comments, bytes that are not UTF-8 are read as Latin-1, as before UTF-8: wg and wg-quick
/// ignore comments.
///
/// # Errors
/// See [`NotText`].
pub fn decode(bytes: &[u8]) -> Result<Zeroizing<String>, NotText> {
    let is_text = |line: &[u8]| {
        let comment = line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
        std::str::from_utf8(&line[..comment]).is_ok()
    };
    if let Some(before) = bytes.split(|byte| *byte == b'\n').position(|line| !is_text(line)) {
        return Err(NotText { line: before + 1 });
    }
    // The text holds keys, so no copy of it must be left behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().copied().map(char::from));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_comments_what_is_no_utf8_is_latin_1() {
        let decode = |bytes: &[u8]| decode(bytes).map(|text| text.to_string());
        assert_eq!(decode("PostUp = ü # Büro\n".as_bytes()).as_deref(), Ok("PostUp = ü # Büro\n"));
        assert_eq!(decode(b"# B\xfcro, \xff\n[Peer]").as_deref(), Ok("# Büro, ÿ\n[Peer]"));
        assert_eq!(decode(&[b'#', 0xc3]).as_deref(), Ok("#Ã"), "half a character");
        assert_eq!(decode(b"").as_deref(), Ok(""));
        assert_eq!(decode(b"[Interface]\nPostUp = touch \xff # x\n"), Err(NotText { line: 2 }));
    }
}
