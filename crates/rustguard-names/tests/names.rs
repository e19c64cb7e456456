//! The zone, its answers and its server, from outside.

#[path = "names/answers.rs"]
mod answers;
#[path = "names/forward.rs"]
mod forward;
#[path = "names/hostile.rs"]
mod hostile;
#[path = "names/network.rs"]
mod network;
#[path = "names/server.rs"]
mod server;
