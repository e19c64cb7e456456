//! The zone, its answers and its server, tested from outside.

#[path = "dns/answers.rs"]
mod answers;
#[path = "dns/forward.rs"]
mod forward;
#[path = "dns/hostile.rs"]
mod hostile;
#[path = "dns/network.rs"]
mod network;
#[path = "dns/server.rs"]
mod server;
