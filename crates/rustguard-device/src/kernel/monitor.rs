//! Watches the tunnel's interface and the network around it, by the kernel's announcements.

use super::{
    answers::HostEvent,
    error::KernelError,
    link::Link,
    netlink::{Announcements, Netlink, ROUTING},
    route_table::table_of,
};
use futures_util::{FutureExt, StreamExt};
use ipnet::Ipv4Net;
use rtnetlink::{
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressMessage},
        link::{LinkAttribute, LinkFlags, LinkMessage},
        route::{RouteAttribute, RouteFlags, RouteMessage, RouteType},
    },
};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::IpAddr,
    time::Duration,
};
use tokio::time::{Interval, MissedTickBehavior};

/// The kernel's table of its own addresses, RT_TABLE_LOCAL. Its routes only repeat the address messages.
const LOCAL_TABLE: u32 = 255;

/// How often an interface in another network namespace is looked at. The kernel announces its changes only there. A
/// look costs about 20 µs.
const LOOK: Duration = Duration::from_millis(200);

/// How often the interface is asked for while it goes on changing. An outdated answer is corrected by its next
/// announcement.
const QUESTIONS: u32 = 8;

/// A subscription to the kernel's announcements, filtered for one interface.
pub struct Monitor {
    messages: Announcements,
    /// The socket of `messages`.
    listening: Netlink,
    netlink: Netlink,
    view: View,
    /// When to look at an interface in another namespace.
    look: Interval,
}

impl Monitor {
    /// Subscribes for the interface with this index. Changes from now on are reported. If the interface is already
    /// gone, that is the first event.
    pub async fn new(index: u32) -> Result<Self, KernelError> {
        let (listening, messages) = Netlink::listening(&ROUTING)?;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut monitor = Self { messages, listening, netlink: Netlink::open()?, view: View::new(index), look };
        match monitor.link_now().await? {
            Some(link) => monitor.view.link = Some(link),
            None if monitor.view.moved => {}
            None => monitor.view.gone(),
        }
        let addresses = monitor.netlink.addresses_of(index).await?;
        addresses.iter().for_each(|address| monitor.view.address_is(address, true));
        Ok(monitor)
    }

    /// The interface's last announced MTU in bytes; `None` after the interface was deleted.
    pub fn mtu(&self) -> Option<u32> {
        self.view.link.as_ref().map(|link| link.mtu)
    }

    /// Whether the interface is up, as announced last. An interface that is out of sight counts as up.
    pub fn is_up(&self) -> bool {
        self.view.link.as_ref().is_none_or(|link| link.up)
    }

    /// The next event. The future may be dropped and called again without losing an event. `None` after the interface
    /// was deleted, or after the kernel closed the subscription; there are no more events then.
    pub async fn next(&mut self) -> Option<HostEvent> {
        loop {
            if let Some(event) = self.view.pending.pop_front() {
                return Some(event);
            }
            if self.view.deleted {
                return None;
            }
            let first = tokio::select! {
                message = self.messages.next() => message?,
                _ = self.look.tick(), if self.view.away.is_some() => {
                    self.look_there().await;
                    continue;
                }
            };
            let mut overrun = self.view.see(&first);
            // The other messages of a burst are already there and become one event.
            while let Some(Some(message)) = self.messages.next().now_or_never() {
                overrun |= self.view.see(&message);
            }
            if overrun {
                self.look_again().await;
            }
        }
    }

    /// Asks for the interface's state, and discards announcements about it that came before the answer, because they
    /// are older. Otherwise, if the interface is set up between the subscription and the answer, an earlier change
    /// would seem to set it down again.
    async fn link_now(&mut self) -> Result<Option<Link>, KernelError> {
        let mut link = None;
        for _ in 0..QUESTIONS {
            link = self.listening.link_by_index(self.view.index).await?;
            let mut outdated = false;
            while let Some(Some(message)) = self.messages.next().now_or_never() {
                outdated |= self.view.is_about_the_link(&message) || self.view.see(&message);
            }
            // The discarded announcements may include a change after the answer.
            if !outdated {
                break;
            }
        }
        Ok(link)
    }

    /// Looks at the interface in the other namespace.
    async fn look_there(&mut self) {
        let Some(Away { namespace, index }) = self.view.away else { return };
        match self.netlink.link_elsewhere(namespace, index).await {
            Ok(Some(link)) => self.view.link_is(link),
            // It was moved on, or deleted. The workers notice a deletion.
            Ok(None) => self.view.away = None,
            Err(error) => {
                tracing::warn!("changes of the interface in the other network namespace will not be noticed: {error}");
                self.view.away = None;
            }
        }
    }

    /// Announcements were lost because too many arrived at once. Queries the current state instead. If that fails too,
    /// the interface's next announcement corrects the state.
    async fn look_again(&mut self) {
        self.view.network_changed();
        match self.link_now().await {
            Ok(Some(link)) => self.view.link_is_here(link),
            // If it was deleted, the workers notice.
            Ok(None) if self.view.moved => {}
            Ok(None) => self.view.gone(),
            Err(error) => tracing::warn!("{error}"),
        }
        match self.netlink.addresses_of(self.view.index).await {
            Ok(addresses) => addresses.iter().for_each(|address| self.view.address_is(address, true)),
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("view", &self.view).finish_non_exhaustive()
    }
}

/// The known state of the interface, and the events that follow from each message.
#[derive(Debug)]
struct View {
    index: u32,
    link: Option<Link>,
    /// Whether each other link that was announced has a carrier.
    carriers: HashMap<u32, bool>,
    pending: VecDeque<HostEvent>,
    deleted: bool,
    /// The interface was moved to another network namespace.
    moved: bool,
    /// The interface's place there, if it is known.
    away: Option<Away>,
}

/// The place of an interface in another network namespace.
#[derive(Clone, Copy, Debug)]
struct Away {
    /// This namespace's number for the other one.
    namespace: i32,
    /// The interface's index there.
    index: u32,
}

impl View {
    fn new(index: u32) -> Self {
        Self {
            index,
            link: None,
            carriers: HashMap::new(),
            pending: VecDeque::new(),
            deleted: false,
            moved: false,
            away: None,
        }
    }

    /// Processes a message. Returns whether it reports lost messages.
    fn see(&mut self, message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
        let message = match &message.payload {
            NetlinkPayload::InnerMessage(message) => message,
            NetlinkPayload::Overrun(_) => return true,
            _ => return false,
        };
        match message {
            // Messages of family AF_BRIDGE concern a bridge's port. An interface that leaves a bridge is not deleted.
            RouteNetlinkMessage::NewLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                if link.header.index == self.index {
                    self.link_is_here(Link::from_message(link));
                } else {
                    self.other_link(link);
                }
            }
            RouteNetlinkMessage::DelLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                if link.header.index == self.index {
                    self.left(link);
                } else {
                    self.carriers.remove(&link.header.index);
                    self.network_changed();
                }
            }
            RouteNetlinkMessage::NewAddress(address) => self.address_is(address, true),
            RouteNetlinkMessage::DelAddress(address) => self.address_is(address, false),
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) if self.is_outside(route) => {
                self.network_changed();
            }
            RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => self.network_changed(),
            _ => {}
        }
        false
    }

    /// Whether a message only reports the interface's state. A message that the interface has left also tells its new
    /// place, so it does not count.
    fn is_about_the_link(&self, message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
        matches!(&message.payload, NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link))
            if link.header.interface_family == AddressFamily::Unspec && link.header.index == self.index)
    }

    fn link_is(&mut self, now: Link) {
        let before = self.link.replace(now);
        if before.is_none_or(|before| before.mtu != now.mtu) {
            self.pending.push_back(HostEvent::LinkMtu(now.mtu));
        }
        if before.is_none_or(|before| before.up != now.up) {
            self.pending.push_back(if now.up { HostEvent::LinkUp } else { HostEvent::LinkDown });
        }
    }

    fn address_is(&mut self, address: &AddressMessage, present: bool) {
        if address.header.index != self.index {
            self.network_changed();
        } else if let Some(network) = network(address) {
            self.pending.push_back(HostEvent::LinkNetwork(network, present));
        }
    }

    /// A link came up or went down. Drivers also announce other changes, wireless ones several times a minute.
    fn other_link(&mut self, link: &LinkMessage) {
        let (index, carrier) = (link.header.index, link.header.flags.contains(LinkFlags::LowerUp));
        // The mask is empty where a driver reports a carrier (netdev_state_change), and set where somebody sets the
        // link up or down.
        let masked = link.header.change_mask.intersects(LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp);
        let before = self.carriers.insert(index, carrier);
        if masked || before.is_some_and(|before| before != carrier) {
            self.network_changed();
            if carrier {
                self.push_once(HostEvent::LinkRegained(index));
            }
        }
    }

    fn link_is_here(&mut self, now: Link) {
        (self.moved, self.away) = (false, None);
        self.link_is(now);
    }

    /// The interface has left this namespace. Since Linux 4.15 the message says whether it was moved, and since 4.20
    /// what its index is there.
    fn left(&mut self, message: &LinkMessage) {
        let namespace = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::NewNetnsId(namespace) => Some(*namespace),
            _ => None,
        });
        let Some(namespace) = namespace else { return self.gone() };
        let index = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::NewIfIndex(index) => u32::try_from(*index).ok(),
            _ => None,
        });
        self.moved = true;
        self.away = Some(Away { namespace, index: index.unwrap_or(self.index) });
        if let Some(link) = self.link.as_mut().filter(|link| link.up) {
            link.up = false;
            self.pending.push_back(HostEvent::LinkDown);
        }
        self.pending.push_back(HostEvent::LinkMoved);
    }

    fn gone(&mut self) {
        if !self.deleted {
            self.deleted = true;
            self.pending.push_back(HostEvent::LinkDeleted);
        }
    }

    fn network_changed(&mut self) {
        self.push_once(HostEvent::NetworkChanged);
    }

    fn push_once(&mut self, event: HostEvent) {
        if !self.pending.contains(&event) {
            self.pending.push_back(event);
        }
    }

    fn is_outside(&self, route: &RouteMessage) -> bool {
        route.header.kind == RouteType::Unicast
            && table_of(route) != LOCAL_TABLE
            // A cloned route is a cached path MTU or redirect, and not a change of the table.
            && !route.header.flags.contains(RouteFlags::Cloned)
            && !route.attributes.contains(&RouteAttribute::Oif(self.index))
    }
}

/// The IPv4 network that an address of the interface is in.
fn network(address: &AddressMessage) -> Option<Ipv4Net> {
    address.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(local)) => Ipv4Net::new(*local, address.header.prefix_len).ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtnetlink::packet_core::NetlinkHeader;

    fn view() -> View {
        View { link: Some(Link { index: 7, mtu: 1420, up: true }), ..View::new(7) }
    }

    fn message(inner: RouteNetlinkMessage) -> NetlinkMessage<RouteNetlinkMessage> {
        NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(inner))
    }

    #[test]
    fn a_burst_is_one_event() {
        let mut view = view();
        let mut address = AddressMessage::default();
        for index in [7, 8, 9, 8] {
            address.header.index = index;
            assert!(!view.see(&message(RouteNetlinkMessage::NewAddress(address.clone()))));
        }
        assert_eq!(view.pending, [HostEvent::NetworkChanged]);
    }

    #[test]
    fn lost_messages_are_noticed() {
        let overrun = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::Overrun(Vec::new()));
        assert!(view().see(&overrun));
    }

    #[test]
    fn only_a_change_of_the_carrier_of_another_link_counts() {
        let mut view = view();
        let mut link = LinkMessage::default();
        link.header.index = 8;
        assert!(!view.see(&message(RouteNetlinkMessage::NewLink(link.clone()))));
        assert_eq!(view.pending, []);
        link.header.change_mask = LinkFlags::Up;
        assert!(!view.see(&message(RouteNetlinkMessage::NewLink(link.clone()))));
        assert_eq!(view.pending, [HostEvent::NetworkChanged]);

        // A driver reports its carrier without a mask.
        view.pending.clear();
        link.header.change_mask = LinkFlags::empty();
        for (flags, events) in [
            (LinkFlags::LowerUp, &[HostEvent::NetworkChanged, HostEvent::LinkRegained(8)][..]),
            (LinkFlags::LowerUp, &[]),
            (LinkFlags::empty(), &[HostEvent::NetworkChanged]),
        ] {
            link.header.flags = flags;
            assert!(!view.see(&message(RouteNetlinkMessage::NewLink(link.clone()))));
            assert_eq!(view.pending, events);
            view.pending.clear();
        }
    }
}
