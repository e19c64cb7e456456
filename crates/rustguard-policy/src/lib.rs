//! Who may talk to whom in a network. The crate does no I/O.
//!
//! | Module | Contents |
//! |---|---|
//! | [`policy`] | the language: groups, rules and tests; [`diagnostic`] has its mistakes |
//! | [`directory`] | the machines that its names and tags mean |
//! | [`verdict`] | what a policy says of two machines |
//! | [`question`] | whether one machine may talk to another, and by which lines |
//! | [`sheet`] | the lines that concern one member, as they travel |
//! | [`rules`] | what one member enforces |
#![forbid(unsafe_code)]

mod check;
pub mod diagnostic;
pub mod directory;
mod parse;
pub mod policy;
pub mod question;
pub mod rules;
pub mod sheet;
pub mod verdict;
