//! Server and clients over a network that loses, duplicates and reorders packets, in simulated time, from a seed.
mod attacks;
mod faults;
mod growth;
mod joins;
mod network;
mod prefixes;
mod removal;
mod rotation;
mod sim;
mod windows;
