//! The commands. Each file has one command, or a few closely related ones.

pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod edit;
pub(crate) mod invite;
pub(crate) mod join;
pub(crate) mod keys;
pub(crate) mod leave;
pub(crate) mod map;
pub(crate) mod neighbours;
pub(crate) mod pages;
pub(crate) mod pairing;
pub(crate) mod peer;
pub(crate) mod ping;
pub(crate) mod reload;
pub(crate) mod rotate;
pub(crate) mod routes;
pub(crate) mod serve;
pub(crate) mod set;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod strip;
pub(crate) mod trace;
pub(crate) mod up;
pub(crate) mod userspace;
