//! What the kernel says, in types that a device without the feature `kernel` has as well.

/// A change of the tunnel's interface or of the network around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(not(feature = "kernel"), expect(dead_code, unreachable_pub, reason = "nothing reports it"))]
pub enum HostEvent {
    /// The interface is gone. The last event.
    LinkDeleted,
    /// The interface has this MTU now, bytes.
    LinkMtu(u32),
    /// The interface was set up.
    LinkUp,
    /// The interface was set down.
    LinkDown,
    /// Something around the tunnel changed: another interface came, went or lost its link, an address, a policy rule or a
    /// route outside the tunnel was added or removed. A burst of such messages is one event. It is a hint: endpoints may be
    /// reachable another way, source addresses may be gone, the path MTU may differ.
    NetworkChanged,
}

/// What netfilter would do with packets that the host forwards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(not(feature = "kernel"), expect(dead_code, reason = "nobody asks"))]
pub(crate) enum ForwardRules {
    /// Not known: not asked yet, or the kernel does not tell.
    #[default]
    Unknown,
    /// Nothing.
    None,
    /// This rule, chain or table applies to them.
    Seen(String),
}

/// Where a datagram of the tunnel's own goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "kernel"), expect(dead_code, reason = "nobody asks"))]
pub(crate) enum Way {
    /// Out by this interface.
    Interface(u32),
    /// Nowhere: its source is not an address of this host.
    NotOurs,
    /// There is no route, or no single one, or no answer.
    Unknown,
}
