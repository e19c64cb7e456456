//! Meshes in simulated time: loss, reordering, duplication, one-way cuts, restarts, clock jumps.
//!
//! All randomness comes from a seed, which a failing test prints; `RUSTGUARD_SEED` replays it.
mod clients;
mod figures;
mod life;
mod loops;
mod names;
mod old_state;
mod passive;
