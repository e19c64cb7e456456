//! Whole devices over in-memory transports, seen from outside: by their hosts, by their peers and by strangers.

mod calls;
mod datagrams;
mod direct;
mod drops;
mod engine;
mod fairness;
mod faulty;
mod fec;
mod filter;
mod forward;
mod lanes;
mod members;
mod network_change;
mod one_kind;
mod pair;
mod ping;
mod policy;
mod relay;
mod support;
mod texts;
mod transport;
