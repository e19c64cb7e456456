//! The tables about prefixes (RFC 8966 §3.2.5 to §3.2.7): routes, feasibility distances, pending requests; and route
//! selection.
pub(crate) mod hold;
pub(crate) mod request;
pub(crate) mod route;
pub(crate) mod select;
pub(crate) mod source;
pub(crate) mod stale;
