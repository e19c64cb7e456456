//! Labels: bounded, and without control characters. The library escapes the rest.

use ipnet::IpNet;
use rustguard_device::{AnnouncementStatus, PeerLabel, PeerStatus, RouteStatus, ipnet, key::to_base64};
use std::borrow::Cow;

/// The labels of a sample.
pub(super) type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// The longest value of a label, in bytes. Names have at most 63 characters; lists of allowed IPs can be longer.
const MAX: usize = 256;

/// A peer with its labels. They are the same as in prometheus_wireguard_exporter.
pub(super) struct Peer<'a> {
    pub(super) status: &'a PeerStatus,
    interface: &'a str,
    public_key: String,
    name: Option<Cow<'a, str>>,
    allowed_ips: String,
}

impl<'a> Peer<'a> {
    pub(super) fn new(interface: &'a str, status: &'a PeerStatus) -> Self {
        Self {
            status,
            interface,
            public_key: to_base64(&status.public_key.0).to_string(),
            name: status.name.as_deref().map(bounded),
            allowed_ips: list(&status.allowed_ips),
        }
    }

    /// The labels of all metrics of peers.
    pub(super) fn labels(&self) -> Labels<'_> {
        peer(self.interface, &self.public_key, self.name.as_deref())
    }

    /// The same labels and one more.
    pub(super) fn labels_and(&self, name: &'static str, value: &'a str) -> Labels<'_> {
        let mut labels = self.labels();
        labels.push((name, value.into()));
        labels
    }

    /// The labels of the metrics that other exporters have as well.
    pub(super) fn wireguard_labels(&self) -> Labels<'_> {
        let mut labels = self.labels();
        labels.push(("allowed_ips", (&*self.allowed_ips).into()));
        labels
    }
}

/// The labels of a neighbour of the routing engine: the labels of its peer.
pub(super) fn neighbour<'a>(interface: &'a str, label: &'a PeerLabel) -> Labels<'a> {
    let key = to_base64(&label.public_key.0).to_string();
    let mut labels = vec![("interface", interface.into()), ("public_key", key.into())];
    labels.extend(label.name.as_deref().map(|name| ("friendly_name", bounded(name))));
    labels
}

/// The labels of a peer with a shared prefix.
pub(super) fn carrier<'a>(interface: &'a str, route: &RouteStatus, carrier: &'a AnnouncementStatus) -> Labels<'a> {
    let mut labels = neighbour(interface, &carrier.from);
    labels.push(("prefix", route.prefix.to_string().into()));
    labels
}

fn peer<'a>(interface: &'a str, key: &'a str, name: Option<&'a str>) -> Labels<'a> {
    let mut labels = Vec::with_capacity(5);
    labels.extend([("interface", interface.into()), ("public_key", key.into())]);
    labels.extend(name.map(|name| ("friendly_name", name.into())));
    labels
}

/// The allowed IPs, separated by commas, as many as fit.
fn list(nets: &[IpNet]) -> String {
    let mut text = String::new();
    for net in nets {
        let net = net.to_string();
        if text.len() + net.len() + ",…".len() + 1 > MAX {
            text.push_str(",…");
            break;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&net);
    }
    text
}

/// The text, at most [`MAX`] bytes of it. People read metrics on terminals, so control characters are replaced.
pub(super) fn bounded(text: &str) -> Cow<'_, str> {
    let text = &text[..text.floor_char_boundary(MAX)];
    if text.contains(char::is_control) {
        text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}
