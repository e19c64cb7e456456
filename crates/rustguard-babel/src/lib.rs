//! Babel: a routing engine for tunnels.
#![forbid(unsafe_code)]
