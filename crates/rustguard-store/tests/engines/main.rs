//! The log in real stores: Debian's etcd and PostgreSQL, each with a folder of its own, on ports of the loopback
//! interface.

mod cluster;
#[allow(dead_code, reason = "the tests of replicas use the rest")]
mod database;
mod etcd;
mod postgres;
mod process;
mod tls;
