//! The names of clients in the comments of a configuration file: each tool that manages a wg-quick server has its own
//! format.
//!
//! | Comment | Written by |
//! |---|---|
//! | `### Client laptop` above `[Peer]` | angristan/wireguard-install |
//! | `# BEGIN_PEER laptop` above | Nyr/wireguard-install |
//! | `### begin laptop ###` above | PiVPN |
//! | `# Client: laptop (id)` above | wg-easy |
//! | `# Name: laptop` in a block above | wireguard-ui |
//! | `# laptop / mail / Updated: …` above | wg-gen-web |
//! | `# friendly_name = laptop`, `# friendly_json = {"name": …}` below | prometheus_wireguard_exporter, OPNsense |
//! | `# laptop` below | Algo, linuxserver/wireguard, Unraid |
//! | `# laptop` right above, or behind the public key | people |

use serde::Deserialize;

/// The most words of a comment that may be a name without a keyword.
const MAX_WORDS: usize = 4;
/// The longest length of such a comment, in characters.
const MAX_LENGTH: usize = 63;

/// The contents of the comments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Comments {
    /// The name of each peer, in the order of the file.
    pub(crate) names: Vec<Option<String>>,
    /// Clients that PiVPN has disabled: their sections are comments.
    pub(crate) disabled: Vec<String>,
    /// The server's public address, in the file of Nyr's script.
    pub(crate) endpoint: Option<String>,
}

/// The meaning of one comment.
enum Said<'a> {
    /// A name that belongs to the next peer.
    Above(&'a str),
    /// A name of the peer whose section contains or follows the comment.
    Name(String),
    Disabled(&'a str),
    Endpoint(&'a str),
    /// A text that may be a name, because of its place.
    Perhaps(&'a str),
    Nothing,
}

/// Reads the comments of a file.
pub(crate) fn read(text: &str) -> Comments {
    let mut comments = Comments::default();
    // The name for the next peer, and whether the comment declares it as a name.
    let mut above: Option<(String, bool)> = None;
    let (mut in_peer, mut has_entries, mut blank, mut certain) = (false, false, true, false);
    for line in text.lines().map(|line| line.trim_start_matches('\u{feff}').trim()) {
        if line.is_empty() {
            above = above.filter(|(_, certain)| *certain);
            blank = true;
            continue;
        }
        let after_blank = std::mem::replace(&mut blank, false);
        if let Some(comment) = line.strip_prefix('#') {
            let at_head = in_peer && !has_entries;
            let own = in_peer && !after_blank;
            match said(comment) {
                Said::Above(name) => above = Some((name.to_owned(), true)),
                Said::Name(name) if own || at_head => give(&mut comments, &mut certain, name, true),
                Said::Name(name) => above = Some((name, true)),
                Said::Disabled(name) => comments.disabled.push(name.to_owned()),
                Said::Endpoint(endpoint) => comments.endpoint = Some(endpoint.to_owned()),
                Said::Perhaps(name) if at_head => give(&mut comments, &mut certain, name.to_owned(), false),
                Said::Perhaps(name) if above.as_ref().is_none_or(|(_, certain)| !certain) => {
                    above = Some((name.to_owned(), false));
                }
                Said::Perhaps(_) | Said::Nothing => {}
            }
            continue;
        }
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.starts_with('[') {
            in_peer = entry.eq_ignore_ascii_case("[peer]");
            has_entries = false;
            let name = above.take().filter(|_| in_peer);
            if in_peer {
                certain = name.as_ref().is_some_and(|(_, certain)| *certain);
                comments.names.push(name.map(|(name, _)| name));
            }
            continue;
        }
        // A comment before an entry is about that entry.
        (has_entries, above) = (true, None);
        if in_peer
            && entry.to_ascii_lowercase().starts_with("publickey")
            && let Some((_, comment)) = line.split_once('#')
            && let Said::Perhaps(name) = said(comment)
            && comments.names.last().is_some_and(Option::is_none)
        {
            give(&mut comments, &mut certain, name.to_owned(), false);
        }
    }
    comments
}

/// Gives a name to the last peer. A declared name replaces a text that may not be a name.
fn give(comments: &mut Comments, certain: &mut bool, name: String, is_certain: bool) {
    if let Some(last) = comments.names.last_mut()
        && (last.is_none() || (is_certain && !*certain))
    {
        (*last, *certain) = (Some(name), is_certain);
    }
}

/// The meaning of a comment, which is given without its first `#`.
fn said(comment: &str) -> Said<'_> {
    let hashes = 1 + comment.len() - comment.trim_start_matches('#').len();
    let text = comment.trim_start_matches('#').trim().trim_end_matches('#').trim_end();
    if let Some(rest) = strip_word(text, "[disabled]") {
        let name =
            strip_word(rest.trim_start_matches('#').trim(), "begin").map(|name| name.trim_end_matches('#').trim());
        return name.map_or(Said::Nothing, Said::Disabled);
    }
    let word = |word| strip_word(text, word).filter(|name| !name.is_empty());
    // `# Client: laptop (id)`: the id belongs to the program.
    if let Some(name) = after(text, "client", ':') {
        let name = name.rsplit_once(" (").filter(|(_, id)| id.ends_with(')')).map_or(name, |(name, _)| name);
        return Said::Above(name.trim());
    }
    if let Some(name) = word("BEGIN_PEER").or_else(|| word("Client").filter(|_| hashes > 1)) {
        return Said::Above(name);
    }
    if let Some(name) = word("begin").filter(|_| hashes > 1) {
        return Said::Above(name);
    }
    if let Some(endpoint) = word("ENDPOINT").filter(|endpoint| !endpoint.contains(char::is_whitespace)) {
        return Said::Endpoint(endpoint);
    }
    if word("end").is_some() || word("END_PEER").is_some() {
        return Said::Nothing;
    }
    for key in ["friendly_name", "name"] {
        if let Some(name) = after(text, key, '=').or_else(|| after(text, key, ':')) {
            return Said::Name(name.to_owned());
        }
    }
    if let Some(json) = after(text, "friendly_json", '=') {
        #[derive(Deserialize)]
        struct Friendly {
            #[serde(alias = "username")]
            name: String,
        }
        let name = serde_json::from_str::<Friendly>(json).ok().map(|friendly| friendly.name);
        return name.filter(|name| !name.trim().is_empty()).map_or(Said::Nothing, Said::Name);
    }
    if let Some((name, _)) = text.split_once(" / ").filter(|(_, rest)| rest.contains("/ Updated: ")) {
        return Said::Above(name.trim());
    }
    let words = text.split_whitespace().count();
    let is_text = (1..=MAX_WORDS).contains(&words)
        && text.chars().count() <= MAX_LENGTH
        && text.contains(char::is_alphanumeric)
        && !text.contains(['=', ':', '[', ']', '!']);
    if is_text { Said::Perhaps(text) } else { Said::Nothing }
}

/// The text after a word, which may be written in any case.
fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(word.len())?;
    (head.eq_ignore_ascii_case(word) && rest.chars().next().is_none_or(char::is_whitespace)).then(|| rest.trim())
}

/// The value in `key = value` or `key: value`.
fn after<'a>(text: &'a str, key: &str, sign: char) -> Option<&'a str> {
    let (found, value) = text.split_once(sign)?;
    (found.trim().eq_ignore_ascii_case(key) && !value.trim().is_empty()).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        read(text).names.into_iter().map(|name| name.unwrap_or_else(|| "-".to_owned())).collect()
    }

    #[test]
    fn the_names_that_tools_write() {
        for (text, expected) in [
            (
                "[Interface]\n\n### Client laptop\n[Peer]\nPublicKey = x\n\n### Client my phone\n[Peer]\n",
                &["laptop", "my phone"][..],
            ),
            (
                "# BEGIN_PEER a\n[Peer]\nPublicKey = x\n# END_PEER a\n# BEGIN_PEER b\n[Peer]\nPublicKey = y\n# END_PEER b",
                &["a", "b"],
            ),
            ("### begin a ###\n[Peer]\nPublicKey = x\n### end a ###\n### begin b ###\n[Peer]\n", &["a", "b"]),
            ("# Server\n[Interface]\n\n\n# Client: Bob (home) (0a1b-2c)\n[Peer]\n", &["Bob (home)"]),
            (
                "# ID:           c5\n# Name:         Joris\n# Email:        \n# Created at:   2024-07-08 14:21:36 +0000 UTC\n[Peer]\n",
                &["Joris"],
            ),
            ("# Anna / a@example.org / Updated: 2020 / Created: 2019\n[Peer]\n", &["Anna"]),
            (
                "[Peer]\n# friendly_name=Box\nPublicKey = x\n[Peer]\n#friendly_json={\"name\":\"Tab\",\"id\":1}\nPublicKey = y",
                &["Box", "Tab"],
            ),
            ("[Peer]\nPublicKey = x\n# friendly_name = late\nAllowedIPs = 10.0.0.2/32\n", &["late"]),
            ("[Peer]\n# peer_phone\nPublicKey = x\n\n[Peer]\n#MyPhone\nPublicKey = y\n", &["peer_phone", "MyPhone"]),
            ("# old laptop\n[Peer]\nPublicKey = x # of Bob\n[Peer]\nPublicKey=y#desk\n", &["old laptop", "desk"]),
            ("\u{feff}# Name = a\r\n[peer]\r\nPublicKey = x\r\n", &["a"]),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_none() {
        for text in [
            "# This file is made by a program, do not edit it by hand\n[Peer]\n",
            "# PublicKey = abc\n[Peer]\n",
            "# laptop\n\n[Peer]\n",
            "##########\n[Peer]\n",
            "[Peer]\nPublicKey = x\n# of the entry below\nAllowedIPs = 10.0.0.2/32\n",
            "### end a ###\n[Peer]\n",
            "# Name:\n[Peer]\n",
        ] {
            assert_eq!(names(text), ["-"], "{text}");
        }
        assert!(names("# BEGIN_PEER a\n[Interface]\n").is_empty());
    }

    #[test]
    fn disabled_clients_and_the_public_address_are_found() {
        let text = "# ENDPOINT vpn.example.org\n[Interface]\n#[disabled] ### begin gone ###\n#[disabled] [Peer]\n\
                    #[disabled] PublicKey = x\n#[disabled] ### end gone ###\n### begin here ###\n[Peer]\n";
        let found = read(text);
        assert_eq!(found.disabled, ["gone"]);
        assert_eq!(found.endpoint.as_deref(), Some("vpn.example.org"));
        assert_eq!(found.names, [Some("here".to_owned())]);
    }
}
