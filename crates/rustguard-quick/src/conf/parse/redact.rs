//! Hides secrets in a text that is shown to people.

use super::{Interface, Peer, Piece, lines};
use crate::conf::{
    keys::{self, Holds},
    piece::{SECRET_LENGTH, without_blanks},
};

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
        let holds = |key: Piece<'_>| {
            let key = key.word();
            let of_interface = keys::named::<Interface>(&key).map(|key| key.form.holds);
            of_interface.or_else(|| keys::named::<Peer>(&key).map(|key| key.form.holds))
        };
        match entry.map(|(key, value)| (holds(key), value)) {
            Some((Some(Holds::Secret), value)) => hide(value),
            // A key is expected here, but not in the comment.
            Some((Some(Holds::PublicKeys), value)) => {
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

/// Whether the file is meant as a configuration: it has one of our sections, or a key that only WireGuard has. Another
/// file, for example `/etc/shadow`, may hold secrets in any form. None of it is shown.
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
