//! Writes a [`Config`] to a file.

use super::{
    Config, Peer,
    keys::{self, Kind, Section},
    peer_names::PeerNames,
    spelling::is_name,
};
use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use std::{
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};
use zeroize::Zeroizing;

/// Writes the file in the order of `wg showconf`, with wg-quick's keys first, like wg-quick's `save`. The file is
/// replaced atomically: readers see either the old contents or the new contents. Only its owner may read it.
///
/// # Errors
/// The file cannot be written. The old file is then unchanged.
pub fn write(path: &Path, config: &Config) -> io::Result<()> {
    write_with_comment(path, "", config)
}

/// Like [`write()`], with a comment at the beginning. The comment consists of whole lines, each with its `#`. The file
/// is durable on return.
///
/// # Errors
/// The file cannot be written. The old file is then unchanged.
pub fn write_with_comment(path: &Path, comment: &str, config: &Config) -> io::Result<()> {
    // A symbolic link stays, and its target is replaced.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut file = AtomicWriteFile::options().mode(0o600).preserve_mode(false).open(path)?;
    file.write_all(comment.as_bytes())?;
    file.write_all(to_text(config).as_bytes())?;
    file.commit()
}

/// The text of the file. [`parse`](super::parse) restores the same configuration from it.
pub fn to_text(config: &Config) -> Zeroizing<String> {
    let names = PeerNames::of(&config.peers);
    let mut lines = vec![Zeroizing::new("[Interface]\n".to_owned())];
    push(&mut lines, &config.interface, &names);
    for peer in &config.peers {
        lines.push(Zeroizing::new("\n".to_owned()));
        push_peer(&mut lines, peer, &names);
    }
    joined(&lines)
}

/// The section of a peer, with its name, and with the names of its relays.
pub(super) fn peer_text(peer: &Peer, names: &PeerNames<'_>) -> Zeroizing<String> {
    let mut lines = Vec::new();
    push_peer(&mut lines, peer, names);
    joined(&lines)
}

/// Joins the lines in one text of the right capacity, because a reallocation would leave a copy of the private key
/// behind.
fn joined(lines: &[Zeroizing<String>]) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(lines.iter().map(|line| line.len()).sum()));
    lines.iter().for_each(|line| out.push_str(line));
    out
}

fn push_peer(lines: &mut Vec<Zeroizing<String>>, peer: &Peer, names: &PeerNames<'_>) {
    // An embedder may have set the name. A name that could end its comment line is left out.
    let name = peer.name.as_ref().filter(|name| is_name(name));
    lines.extend(name.map(|name| Zeroizing::new(format!("# Name = {name}\n"))));
    lines.push(Zeroizing::new("[Peer]\n".to_owned()));
    push(lines, peer, names);
}

/// The lines of a section: lists in one line.
fn push<S: Section>(lines: &mut Vec<Zeroizing<String>>, section: &S, names: &PeerNames<'_>) {
    for key in keys::all(S::PRINTED) {
        let values = key.values(section);
        let form = &key.form;
        // The key in a pin makes a line long enough.
        let one_each = form.kind == Kind::Lines || form.kind == Kind::Set && form.phrases;
        for values in values.chunks(if one_each { 1 } else { values.len().max(1) }) {
            let values: Vec<_> = values.iter().map(|value| names.in_file(form, value)).collect();
            let room = form.name.len() + 4 + values.iter().map(|value| value.len() + 2).sum::<usize>();
            let mut line = Zeroizing::new(String::with_capacity(room));
            line.push_str(form.name);
            for (n, value) in values.iter().enumerate() {
                line.push_str(if n == 0 { " = " } else { ", " });
                line.push_str(value);
            }
            line.push('\n');
            lines.push(line);
        }
    }
}
