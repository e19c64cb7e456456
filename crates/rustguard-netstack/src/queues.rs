//! The packets between the stack and the tunnel.

use smoltcp::{
    phy::{self, Device, DeviceCapabilities, Medium},
    time::Instant,
};
use std::collections::VecDeque;

/// The most packets that wait for the tunnel. The stack makes no more until some of them are gone.
const MOST: usize = 256;

/// smoltcp's device: two queues.
pub(crate) struct Queues {
    /// From the tunnel.
    pub(crate) arrived: VecDeque<Vec<u8>>,
    /// For the tunnel.
    pub(crate) leaving: VecDeque<Vec<u8>>,
    mtu: usize,
}

impl Queues {
    pub(crate) fn new(mtu: usize) -> Self {
        Self { arrived: VecDeque::new(), leaving: VecDeque::new(), mtu }
    }
}

impl Device for Queues {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        // An answer has room even if the queue is full: there are no more answers than packets that arrive.
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Leaving(&mut self.leaving)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        (self.leaving.len() < MOST).then_some(Leaving(&mut self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

pub(crate) struct Arrived(Vec<u8>);

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

pub(crate) struct Leaving<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}
