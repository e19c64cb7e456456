//! Links with a delay, without netem, which many kernels lack: a thread holds each packet for a while.
use crate::Node;
use anyhow::Result;
use rustguard_tun::{
    Span, TunQueue as _,
    tun::{Tun, TunOptions},
    wait::Waiter,
};
use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant},
};

/// The maximum of waiting packets. More are lost.
const QUEUE: usize = 10_000;

/// From now on, packets that arrive at this interface of a router are delayed by `delay`. They pass through a TUN of
/// this process and back, until the process ends. `table` is a routing table for this interface only.
pub(crate) fn delay(router: &Node, interface: &str, table: u8, delay: Duration) -> Result<()> {
    let name = format!("slow{table}");
    let tun = router.inside(|| Ok(Tun::create(&TunOptions::new(name.as_str()).offload(false))?))?;
    router.sh(&format!(
        "ip link set {name} up
         for ip in 'ip' 'ip -6'; do
             $ip route add default dev {name} table {table}
             $ip rule add iif {interface} lookup {table}
         done"
    ))?;
    let (waiter, _) = Waiter::new()?;
    thread::spawn(move || {
        // The TUN fails only when the namespace ends, and then the process ends too.
        let _ = hold(tun, waiter, delay);
    });
    Ok(())
}

fn hold(mut tun: Tun, mut waiter: Waiter, delay: Duration) -> Result<()> {
    let (mut held, mut slab) = (VecDeque::new(), vec![0; tun.max_read()]);
    loop {
        while let Some(packets) = tun.read(&mut slab, 0, usize::from(u16::MAX))? {
            for Span { offset, len } in packets.pieces().take(QUEUE - held.len()) {
                held.push_back((Instant::now() + delay, slab[offset..offset + len].to_vec()));
            }
        }
        while let Some((_, mut packet)) = held.pop_front_if(|(due, _)| *due <= Instant::now()) {
            let whole = Span { offset: 0, len: packet.len() };
            tun.write(&mut packet, &[whole])?;
        }
        let next = held.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        waiter.wait([tun.fd()], next)?;
    }
}
