//! The policy of a network: which machines may communicate. The crate does no I/O.
//!
//! | Module | Contents |
//! |---|---|
//! | [`policy`] | the language: groups, rules and tests; [`diagnostic`] describes mistakes in it |
//! | [`directory`] | the machines to which its names and tags refer |
//! | [`verdict`] | the decision of a policy about two machines |
//! | [`question`] | whether one machine may connect to another, and by which lines |
//! | [`sheet`] | the lines that concern one member, in the form that is sent |
//! | [`rules`] | the rules that one member enforces |
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
