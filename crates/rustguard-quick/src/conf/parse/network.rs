//! The keys of `[Interface]` for a member of a network.

use super::{Diagnostic, Parser, Piece, Routing, value};
use crate::conf::value::Accepted;

impl<'a> Parser<'a> {
    pub(super) fn network_entry(&mut self, key: &'static str, value: Piece<'a>) {
        if key == "Network" {
            self.network = Some(value.span());
            self.interface.network = self.value(key, value, value::network);
            return;
        }
        self.accept.get_or_insert_with(|| value.span());
        for item in value.list() {
            let Some(accepted) = self.value(key, item, value::accept) else { continue };
            let accept = &mut self.interface.accept;
            match accepted {
                Accepted::Dns => accept.dns = true,
                Accepted::DefaultRoute => accept.default_route = true,
                Accepted::Routes => accept.routes = true,
                Accepted::Prefix(net) if accept.prefixes.contains(&net) => {}
                Accepted::Prefix(net) => accept.prefixes.push(net),
            }
        }
    }

    pub(super) fn check_network(&mut self) {
        let Some(network) = self.network.clone() else {
            if let Some(accept) = self.accept.take() {
                self.diagnostics.push(
                    Diagnostic::warning(accept, "Accept has no effect without a network")
                        .help("`rustguard join` writes `Network = …`, the key of the network, in [Interface]"),
                );
            }
            return;
        };
        if self.interface.routing == Routing::Babel {
            self.diagnostics.push(
                Diagnostic::error(network.clone(), "Network and `Routing = babel` cannot be in one file")
                    .help("the roster of the network says where packets go; give the mesh an interface of its own"),
            );
        } else {
            self.interface.routing = Routing::of_member(self.interface.forward == Some(true));
        }
        if self.drafts.is_empty() {
            self.diagnostics.push(
                Diagnostic::warning(network, "a member of a network without a [Peer] reaches nobody at first")
                    .help("the server of the network has to be a peer; `rustguard join` writes it"),
            );
        }
    }
}
