//! Who may talk to whom in a network. The crate does no I/O.
//!
//! | Module | Contents |
//! |---|---|
//! | [`rules`] | what one member enforces |
#![forbid(unsafe_code)]

pub mod rules;
