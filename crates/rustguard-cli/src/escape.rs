//! Text from outside, made safe for terminals and logs.

use std::borrow::Cow;

/// Replaces control characters by escapes such as `\u{1b}` or `\n`. The result is one line, and cannot move the cursor,
/// change colours, or reverse the reading direction of the rest (UTR #36, section 2.1).
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_dangerous) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_dangerous(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// Whether a terminal would not show the character, but do something.
pub(crate) fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        for (text, escaped) in [
            ("laptop", "laptop"),
            ("Zoë's 電話", "Zoë's 電話"),
            ("a\u{1b}[2Jb", r"a\u{1b}[2Jb"),
            ("two\nlines\r\t", r"two\nlines\r\t"),
            ("\u{9b}31m\u{7}\u{7f}\0", r"\u{9b}31m\u{7}\u{7f}\u{0}"),
            ("moc.\u{202e}elpmaxe\u{2066}", r"moc.\u{202e}elpmaxe\u{2066}"),
        ] {
            assert_eq!(escape(text), escaped);
        }
    }
}
