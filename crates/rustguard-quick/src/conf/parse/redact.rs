//! Secrets in a text that people are shown: the quoted lines, and what the messages repeat of a value.

use super::{INTERFACE_KEYS, PEER_KEYS, Piece, lines, piece::without_blanks};

/// Text of at least this length, in bytes, may be a key that has lost a part. Messages do not repeat it where no such
/// text is expected.
pub(super) const SECRET_LENGTH: usize = 32;

/// `text`, with asterisks in place of every value that is a secret or may be one. The result is for showing the lines
/// that diagnostics concern. Byte offsets do not change.
pub fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut end = 0;
    let mut hide = |secret: Piece<'_>| {
        out.push_str(&text[end..secret.start]);
        out.extend(std::iter::repeat_n('*', secret.end - secret.start));
        end = secret.end;
    };
    let ours = is_configuration(text);
    for line in lines(text) {
        if !ours {
            hide(line);
            continue;
        }
        let entry = line.split_at_char('=').map(|(key, value)| (key.trim(), value.trim()));
        let known = |key: Piece<'_>| {
            let key = key.word();
            INTERFACE_KEYS.iter().chain(&PEER_KEYS).find(|known| known.eq_ignore_ascii_case(&key)).copied()
        };
        match entry.map(|(key, value)| (known(key), value)) {
            Some((Some("PrivateKey" | "PresharedKey"), value)) => hide(value),
            // A key is expected here, but not in the comment.
            Some((Some("PublicKey" | "Pin"), value)) => {
                if let Some((_, comment)) = value.split_at_char('#') {
                    comment.keys().for_each(&mut hide);
                }
            }
            Some((Some(_), value)) => value.keys().for_each(&mut hide),
            // The key is misspelt or the line is malformed. Text that is long enough for a secret is treated as one.
            _ => line
                .words(|c: char| c.is_whitespace() || c == '=')
                .filter(|word| word.end - word.start >= SECRET_LENGTH)
                .for_each(&mut hide),
        }
    }
    out.push_str(&text[end..]);
    out
}

/// A message without what looks like a key, and whether there was any.
pub(super) fn without_keys(message: &str) -> (String, bool) {
    let mut out = message.to_owned();
    let whole = Piece { text: message, line: 1, line_start: 0, start: 0, end: message.len() };
    for key in whole.keys() {
        out.replace_range(key.start..key.end, &"*".repeat(key.end - key.start));
    }
    let changed = out != message;
    (out, changed)
}

/// Whether the file is meant as a configuration: it has one of our sections, or a key that only WireGuard has. Another file, for
/// example `/etc/shadow`, may hold secrets in any form. None of it is shown.
pub fn is_configuration(text: &str) -> bool {
    lines(text).any(|line| {
        let line = line.trim().str();
        let section = without_blanks(line.split_inclusive(']').next().unwrap_or_default());
        let key = without_blanks(line.split('=').next().unwrap_or_default());
        ["[Interface]", "[Peer]"].iter().any(|known| known.eq_ignore_ascii_case(&section))
            || ["PrivateKey", "PublicKey", "AllowedIPs"].iter().any(|known| known.eq_ignore_ascii_case(&key))
    })
}

/// A key for a message, unless it could be a misplaced secret.
pub(super) fn quoted(key: Piece<'_>) -> String {
    if key.str().len() < SECRET_LENGTH { format!("`{}`", key.str()) } else { "of this length".to_owned() }
}

impl<'a> Piece<'a> {
    /// The parts that look like a key in base64, or like most of one. A path or a host name of this length without any
    /// capital letter is none: that happens to one key in 10⁷.
    fn keys(self) -> impl Iterator<Item = Self> {
        self.words(|c| !(c.is_ascii_alphanumeric() || "+/=".contains(c))).filter(|word| {
            word.end - word.start >= SECRET_LENGTH && word.str().bytes().any(|byte| byte.is_ascii_uppercase())
        })
    }
}
