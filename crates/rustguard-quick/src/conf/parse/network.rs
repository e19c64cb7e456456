//! The checks of a member of a network.

use super::{Diagnostic, Parser, Routing};

impl Parser<'_> {
    pub(super) fn check_network(&mut self) {
        if let Some(standby) = self.places.lines("Standby").next()
            && self.interface.standby == Some(true)
            && self.interface.forward != Some(true)
        {
            self.diagnostics.push(Diagnostic::warning(standby.span(), "Standby has no effect without Forward").help(
                "a standby is a further server of its network: `Forward = on`, `ListenPort` and `PublicEndpoint`",
            ));
        }
        let Some(network) = self.places.lines("Network").next_back() else {
            if let Some(accept) = self.places.lines("Accept").next() {
                self.diagnostics.push(
                    Diagnostic::warning(accept.span(), "Accept has no effect without a network")
                        .help("`rustguard join` writes `Network = …`, the key of the network, in [Interface]"),
                );
            }
            return;
        };
        if self.interface.routing == Routing::Babel {
            self.diagnostics.push(
                Diagnostic::error(network.span(), "Network and `Routing = babel` cannot be in one file")
                    .help("the roster of the network says where packets go; give the mesh an interface of its own"),
            );
        } else {
            self.interface.routing = Routing::of_member(self.interface.forward == Some(true));
        }
        if self.drafts.is_empty() {
            self.diagnostics.push(
                Diagnostic::warning(network.span(), "a member of a network without a [Peer] reaches nobody at first")
                    .help("the server of the network has to be a peer; `rustguard join` writes it"),
            );
        }
    }
}
