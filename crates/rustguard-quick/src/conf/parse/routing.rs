//! The keys of `[Interface]` for a routing protocol.

use super::{Diagnostic, Parser, Piece, redact::SECRET_LENGTH, value};
use crate::conf::Pin;
use rustguard_crypto::x25519::PublicKey;

impl<'a> Parser<'a> {
    pub(super) fn routing_entry(&mut self, key: &'static str, value: Piece<'a>) {
        if key == "Routing" {
            self.interface.routing = self.value(key, value, value::routing).unwrap_or_default();
            return;
        }
        self.needs_babel.push((key, value.span()));
        match key {
            "Announce" => {
                for item in value.list() {
                    if let Some(net) = self.value(key, item, value::net) {
                        self.interface.announce.push(net.trunc());
                    }
                }
            }
            "Redistribute" => {
                for item in value.list() {
                    let which = self.value(key, item, value::redistribute);
                    self.interface.redistribute.extend(which);
                }
            }
            "SourceCheck" => {
                self.interface.source_check = self.value(key, value, value::source_check).unwrap_or_default();
            }
            "NodeName" => {
                self.interface.node_name = self.value(key, value, value::node_name).unwrap_or_default();
            }
            _ => {
                for item in value.words(|c| c == ',').map(Piece::trim).filter(|item| !item.str().is_empty()) {
                    self.pin(item);
                }
            }
        }
    }

    /// `PREFIX KEY`.
    fn pin(&mut self, item: Piece<'a>) {
        let words: Vec<_> = item.words(char::is_whitespace).collect();
        // Prefixes are shorter than keys. Longer text in the place of a prefix is not repeated, because it may be a
        // secret key.
        let is_prefix = |word: Piece<'_>| word.str().len() < SECRET_LENGTH || word.str().contains(':');
        let (prefix, key) = match words[..] {
            [prefix, key] if is_prefix(prefix) => (prefix, key),
            _ => {
                self.diagnostics.push(Diagnostic::error(item.span(), "Pin must be a prefix and a public key").help(
                    "for example `Pin = 10.77.0.5/32 PUBLICKEY`; more of them after commas, or in lines of their own",
                ));
                return;
            }
        };
        let net = self.value("Pin", prefix, value::net);
        let bytes = self.value("Pin", key, value::key);
        if bytes.as_ref().is_some_and(|bytes| **bytes == [0; 32]) {
            self.diagnostics.push(Diagnostic::error(key.span(), "Pin has a key that is all zeros, which is no key"));
        }
        let (Some(net), Some(bytes)) = (net, bytes) else { return };
        let pin = Pin { prefix: net.trunc(), key: PublicKey(*bytes) };
        match self.pins.iter().find(|(other, _)| other.prefix == pin.prefix) {
            Some((other, line)) if other.key != pin.key => self.diagnostics.push(
                Diagnostic::error(
                    item.span(),
                    format!("Pin gives {} to another key than line {line} does", pin.prefix),
                )
                .help("a prefix has one origin; remove one of them, or pin parts of the prefix"),
            ),
            Some((_, line)) => {
                let message = format!("Pin of {} is given twice, first in line {line}", pin.prefix);
                self.diagnostics.push(Diagnostic::warning(item.span(), message).help("remove one of them"));
            }
            None => self.pins.push((pin, item.line)),
        }
    }
}
