//! Server and clients over a network that loses, duplicates and reorders packets, in simulated time, from a seed.
mod attacks;
mod faults;
mod growth;
mod joins;
mod removal;
mod sim;
mod windows;
