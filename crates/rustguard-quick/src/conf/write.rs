//! Writes a [`Config`] to a file.

use super::{
    Config, Peer,
    entries::{self, Entry, Kind},
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
    let interface = entries::of_interface(&config.interface);
    let names = PeerNames::of(&config.peers);
    let peers: Vec<_> = config.peers.iter().map(|peer| (peer, entries::of_peer_with_names(peer, &names))).collect();
    // The capacity covers the whole text, because a reallocation would leave a copy of the private key behind.
    let room = |entries: &[Entry]| entries.iter().map(Entry::room).sum::<usize>();
    let capacity =
        64 + room(&interface) + peers.iter().map(|(peer, entries)| peer_room(peer) + room(entries)).sum::<usize>();
    let mut out = Zeroizing::new(String::with_capacity(capacity));
    out.push_str("[Interface]\n");
    interface.iter().for_each(|entry| entry.push(&mut out));
    for (peer, entries) in &peers {
        out.push('\n');
        push_peer(&mut out, peer, entries);
    }
    out
}

/// The section of a peer, with its name, and with the names of its relays.
pub(super) fn peer_text(peer: &Peer, names: &PeerNames<'_>) -> Zeroizing<String> {
    let entries = entries::of_peer_with_names(peer, names);
    let capacity = peer_room(peer) + entries.iter().map(Entry::room).sum::<usize>();
    let mut out = Zeroizing::new(String::with_capacity(capacity));
    push_peer(&mut out, peer, &entries);
    out
}

fn push_peer(out: &mut String, peer: &Peer, entries: &[Entry]) {
    // An embedder may have set the name. A name that could end its comment line is left out.
    if let Some(name) = peer.name.as_ref().filter(|name| is_name(name)) {
        out.push_str("# Name = ");
        out.push_str(name);
        out.push('\n');
    }
    out.push_str("[Peer]\n");
    entries.iter().for_each(|entry| entry.push(out));
}

/// The bytes of a peer's section besides its keys.
fn peer_room(peer: &Peer) -> usize {
    32 + peer.name.as_ref().map_or(0, String::len)
}

impl Entry {
    /// The lines of this key: lists in one line.
    fn push(&self, out: &mut String) {
        let mut line = |value: &[Zeroizing<String>]| {
            out.push_str(self.key);
            out.push_str(" = ");
            for (n, value) in value.iter().enumerate() {
                out.push_str(if n == 0 { "" } else { ", " });
                out.push_str(value);
            }
            out.push('\n');
        };
        match self.kind {
            _ if self.values.is_empty() => {}
            // The key in a pin makes a line long enough.
            Kind::Set if self.key == "Pin" => self.values.chunks(1).for_each(line),
            Kind::Lines => self.values.chunks(1).for_each(line),
            Kind::One | Kind::List | Kind::Set => line(&self.values),
        }
    }

    /// At least the bytes that [`push`](Self::push) writes.
    fn room(&self) -> usize {
        self.values.iter().map(|value| self.key.len() + 4 + value.len()).sum()
    }
}
