//! The effects of a link on packets.

use clap::ValueEnum;
use std::time::Duration;

/// The measured links. Both directions of a link are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Nothing is delayed or lost.
    None,
    /// 2 ± 2 ms, 0.25 % lost: a good line at home.
    Mild,
    /// 4 ± 7 ms, 1 % lost: a wireless network with others on it.
    Poor,
    /// 6 ± 15 ms, 2.5 % lost: the edge of a cell.
    Bad,
    /// 4 ms, 1 % lost, without reordering.
    Lossy,
    /// 6 ms, 2.5 % lost, without reordering.
    Lossier,
}

/// The effects on each packet in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Impairment {
    /// The mean of the delay, before it is cut off at zero.
    pub(super) delay: Duration,
    /// The standard deviation of the delay, which is normally distributed. A packet may overtake others.
    pub(super) jitter: Duration,
    /// The probability of loss, from 0 to 1.
    pub(super) loss: f64,
}

impl Profile {
    /// The links that are measured by default.
    pub(super) const USUAL: [Self; 4] = [Self::None, Self::Mild, Self::Poor, Self::Bad];

    /// The effects of the link.
    pub(super) fn impairment(self) -> Impairment {
        let of = |delay, jitter, loss| Impairment {
            delay: Duration::from_millis(delay),
            jitter: Duration::from_millis(jitter),
            loss,
        };
        match self {
            Self::None => Impairment::default(),
            Self::Mild => of(2, 2, 0.0025),
            Self::Poor => of(4, 7, 0.01),
            Self::Bad => of(6, 15, 0.025),
            Self::Lossy => of(4, 0, 0.01),
            Self::Lossier => of(6, 0, 0.025),
        }
    }

    /// Its name and its effects.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::None => "`none`: no delay, no loss",
            Self::Mild => "`mild`: 2 ± 2 ms, 0.25 % lost",
            Self::Poor => "`poor`: 4 ± 7 ms, 1 % lost",
            Self::Bad => "`bad`: 6 ± 15 ms, 2.5 % lost",
            Self::Lossy => "`lossy`: 4 ms, 1 % lost",
            Self::Lossier => "`lossier`: 6 ms, 2.5 % lost",
        }
    }
}
