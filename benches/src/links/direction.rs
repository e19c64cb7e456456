//! One direction of an emulated link: the packets in transit. The caller provides the clock and the random numbers.

use super::profile::Impairment;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    f64::consts::TAU,
    time::Duration,
};

/// Packets in transit from one end to the other. Times count from any fixed moment.
pub(super) struct Direction<P> {
    impairment: Impairment,
    rng: StdRng,
    under_way: BinaryHeap<Reverse<Held<P>>>,
    /// The maximum of packets in transit. More are dropped.
    room: usize,
    counts: Counts,
}

/// Counters of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Packets that were sent.
    pub(super) sent: u64,
    /// Of these, the packets that were lost by chance.
    pub(super) lost: u64,
    /// Packets that were dropped because too many were in transit. There should be none.
    pub(super) crowded_out: u64,
    /// Packets that were sent while the link was cut.
    pub(super) cut: u64,
}

/// A packet, its arrival time, and its number, which keeps the order of packets with the same arrival time.
struct Held<P> {
    due: Duration,
    number: u64,
    packet: P,
}

impl<P> Direction<P> {
    /// A direction without delay and loss, with room for so many packets.
    pub(super) fn new(room: usize) -> Self {
        Self {
            impairment: Impairment::default(),
            rng: StdRng::seed_from_u64(0),
            under_way: BinaryHeap::new(),
            room,
            counts: Counts::default(),
        }
    }

    /// From now on, treats packets in this way, with random numbers from `seed`. Packets in transit arrive as before.
    pub(super) fn set(&mut self, impairment: Impairment, seed: u64) {
        (self.impairment, self.rng) = (impairment, StdRng::seed_from_u64(seed));
    }

    /// Sends a packet. Returns it if it does not reach the other end.
    pub(super) fn send(&mut self, now: Duration, packet: P) -> Option<P> {
        self.counts.sent += 1;
        // Each packet uses the same number of random numbers, so that one packet's loss does not affect the next.
        let (is_lost, delay) = (self.rng.random::<f64>() < self.impairment.loss, self.delay());
        if is_lost {
            self.counts.lost += 1;
            return Some(packet);
        }
        if self.under_way.len() == self.room {
            self.counts.crowded_out += 1;
            return Some(packet);
        }
        let number = self.counts.sent;
        self.under_way.push(Reverse(Held { due: now + delay, number, packet }));
        None
    }

    /// Counts a packet that was sent into a link that is cut.
    pub(super) fn count_cut(&mut self) {
        self.counts.cut += 1;
    }

    /// Normally distributed (Box and Muller), and never negative.
    fn delay(&mut self) -> Duration {
        let Impairment { delay, jitter, .. } = self.impairment;
        let (radius, angle): (f64, f64) = (self.rng.random(), self.rng.random());
        // `1 - radius` is not zero.
        let deviation = (-2.0 * (1.0 - radius).ln()).sqrt() * (TAU * angle).cos();
        Duration::from_secs_f64((delay.as_secs_f64() + jitter.as_secs_f64() * deviation).max(0.0))
    }

    /// The next packet that has arrived by `now`.
    pub(super) fn arrived(&mut self, now: Duration) -> Option<P> {
        if self.under_way.peek()?.0.due > now {
            return None;
        }
        self.under_way.pop().map(|Reverse(held)| held.packet)
    }

    /// Whether packets are in transit.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The counters so far.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }
}

impl<P> Held<P> {
    fn order(&self) -> (Duration, u64) {
        (self.due, self.number)
    }
}

impl<P> Ord for Held<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl<P> PartialOrd for Held<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Held<P> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<P> Eq for Held<P> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Profile;

    const PACKETS: u32 = 100_000;
    /// The time from one packet to the next.
    const PACE: Duration = Duration::from_micros(10);

    /// Sends packets at a steady pace. Returns the number and the arrival time of each packet that arrived, in the
    /// order of arrival. The clock goes in steps of 1 µs.
    fn arrivals(profile: Profile, seed: u64) -> (Vec<(u32, Duration)>, Counts) {
        let mut direction = Direction::new(1 << 20);
        direction.set(profile.impairment(), seed);
        let (mut arrived, mut now, mut sent) = (Vec::new(), Duration::ZERO, 0);
        while sent < PACKETS || direction.is_busy() {
            while sent < PACKETS && PACE * sent <= now {
                direction.send(now, sent);
                sent += 1;
            }
            arrived.extend(std::iter::from_fn(|| direction.arrived(now)).map(|packet| (packet, now)));
            now += Duration::from_micros(1);
        }
        (arrived, direction.counts())
    }

    fn delays(arrived: &[(u32, Duration)]) -> Vec<f64> {
        arrived.iter().map(|(packet, at)| (*at - PACE * *packet).as_secs_f64() * 1e3).collect()
    }

    /// The mean and the standard deviation of a normal distribution that is cut off at zero, by numerical integration.
    fn cut_normal(mean: f64, deviation: f64) -> (f64, f64) {
        let (mut all, mut first, mut second) = (0.0, 0.0, 0.0);
        for step in -60_000..60_000 {
            let z = f64::from(step) / 10_000.0;
            let (weight, x) = ((-z * z / 2.0).exp(), (mean + deviation * z).max(0.0));
            (all, first, second) = (all + weight, first + weight * x, second + weight * x * x);
        }
        (first / all, (second / all - (first / all).powi(2)).sqrt())
    }

    #[test]
    fn delays_and_losses_are_those_of_the_profile() {
        for profile in [Profile::Mild, Profile::Poor, Profile::Bad] {
            let Impairment { delay, jitter, loss } = profile.impairment();
            let (arrived, counts) = arrivals(profile, 7);
            assert_eq!((counts.sent, counts.crowded_out), (PACKETS.into(), 0));
            assert_eq!(arrived.len() as u64, counts.sent - counts.lost, "{profile:?}");
            // Five standard deviations of the number of lost packets.
            let (expected, allowed) = (loss * f64::from(PACKETS), 5.0 * (loss * f64::from(PACKETS)).sqrt());
            assert!((counts.lost as f64 - expected).abs() < allowed, "{profile:?}: {counts:?}");

            let delays = delays(&arrived);
            let mean = delays.iter().sum::<f64>() / delays.len() as f64;
            let deviation = (delays.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / delays.len() as f64).sqrt();
            let expected = cut_normal(delay.as_secs_f64() * 1e3, jitter.as_secs_f64() * 1e3);
            for (measured, expected) in [(mean, expected.0), (deviation, expected.1)] {
                assert!(
                    (measured / expected - 1.0).abs() < 0.02,
                    "{profile:?}: {mean} ± {deviation}, not {expected:?}"
                );
            }
            let at_once = delays.iter().filter(|delay| **delay <= 0.001).count() as f64 / delays.len() as f64;
            // Φ(-1), Φ(-4/7), Φ(-6/15).
            let expected = match profile {
                Profile::Mild => 0.1587,
                Profile::Poor => 0.2839,
                _ => 0.3446,
            };
            assert!((at_once - expected).abs() < 0.01, "{profile:?}: {at_once} are cut at zero");
        }
    }

    #[test]
    fn packets_overtake_each_other_only_where_there_is_jitter() {
        let overtaken = |profile| arrivals(profile, 3).0.windows(2).filter(|two| two[0].0 > two[1].0).count();
        assert_eq!(overtaken(Profile::None), 0);
        assert!(overtaken(Profile::Mild) > PACKETS as usize / 4);
    }

    #[test]
    fn nothing_happens_on_a_link_without_impairment() {
        let (arrived, counts) = arrivals(Profile::None, 1);
        assert_eq!(counts, Counts { sent: PACKETS.into(), ..Counts::default() });
        assert!(arrived.iter().enumerate().all(|(n, (packet, at))| n as u32 == *packet && *at == PACE * *packet));
    }

    #[test]
    fn the_seed_decides() {
        let (first, second, other) = (arrivals(Profile::Bad, 1), arrivals(Profile::Bad, 1), arrivals(Profile::Bad, 2));
        assert_eq!(first, second);
        assert_ne!(first.0, other.0);
        let mut direction = Direction::new(10);
        let lost = |direction: &mut Direction<u32>| {
            direction.set(Impairment { loss: 0.5, ..Impairment::default() }, 1);
            (0..8).map(|n| direction.send(Duration::ZERO, n).is_some()).collect::<Vec<_>>()
        };
        let before = lost(&mut direction);
        while direction.arrived(Duration::ZERO).is_some() {}
        assert_eq!(before, lost(&mut direction), "it begins anew when it is set");
    }

    #[test]
    fn packets_without_room_are_dropped_and_counted() {
        let mut direction = Direction::new(2);
        let slow = Impairment { delay: Duration::from_millis(1), ..Impairment::default() };
        direction.set(slow, 1);
        assert_eq!([1, 2, 3].map(|packet| direction.send(Duration::ZERO, packet)), [None, None, Some(3)]);
        assert_eq!(direction.arrived(Duration::from_micros(999)), None);
        assert_eq!(direction.arrived(Duration::from_millis(1)), Some(1));
        assert_eq!(direction.send(Duration::from_millis(1), 4), None);
        assert_eq!(direction.counts(), Counts { sent: 4, crowded_out: 1, ..Counts::default() });
    }
}
