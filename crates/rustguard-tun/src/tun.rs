//! The kernel's TUN device.
use crate::{Segments, Span, TunQueue};
use std::{io, os::fd::BorrowedFd};

/// What to create.
#[derive(Clone, Debug)]
pub struct TunOptions {
    /// Interface name, at most 15 bytes.
    pub name: String,
    /// MTU to set at creation; `None` leaves the kernel's.
    pub mtu: Option<u32>,
}

/// One queue.
pub struct Tun(());

impl Tun {
    /// Creates the interface. It disappears when the last queue is dropped.
    pub fn create(_options: &TunOptions) -> Result<Self, TunError> {
        todo!()
    }
    /// The name the kernel gave.
    pub fn name(&self) -> &str {
        todo!()
    }
    /// The interface index.
    pub fn index(&self) -> u32 {
        todo!()
    }
    /// The MTU now, from the kernel.
    pub fn mtu(&self) -> io::Result<u32> {
        todo!()
    }
}

/// Why an interface was not created: each variant's message names the thing, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunError {
    /// Anything else.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl TunQueue for Tun {
    fn read(&mut self, _slab: &mut [u8], _at: usize) -> io::Result<Option<Segments>> {
        todo!()
    }
    fn write(&mut self, _slab: &mut [u8], _packets: &[Span]) -> io::Result<usize> {
        todo!()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
    fn max_read(&self) -> usize {
        todo!()
    }
}
