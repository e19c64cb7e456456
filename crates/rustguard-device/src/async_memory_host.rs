//! The application's end of an interface in memory, for programs that wait with tokio.

use rustguard_tun::memory::MemoryHost;
use std::{io, os::fd::BorrowedFd};
use tokio::{io::Interest, net::UnixDatagram};

/// The application's end of an interface in memory ([`memory::tun`](rustguard_tun::memory::tun)), with methods that are
/// futures. Such a tunnel has no TUN device, so it needs no root. A network stack in the program sends and receives its
/// packets.
///
/// ```no_run
/// # use rustguard_device::{AsyncMemoryHost, UdpBinder, tun::memory};
/// # async fn example(builder: rustguard_device::Builder, packet: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
/// let (tun, host) = memory::tun()?;
/// let device = builder.start_with(tun, UdpBinder::default())?;
/// let host = AsyncMemoryHost::new(host)?;
/// host.send(packet).await?;
/// let mut buffer = [0; 65_535];
/// let len = host.recv(&mut buffer).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncMemoryHost {
    // These are eventfds. tokio's type accepts any descriptor without `unsafe`; only its `async_io` is used.
    arrived: UnixDatagram,
    room: UnixDatagram,
    host: MemoryHost,
}

impl AsyncMemoryHost {
    /// Takes over the end.
    ///
    /// # Errors
    /// The process has reached its limit of file descriptors.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub fn new(host: MemoryHost) -> io::Result<Self> {
        let readable = |fd: BorrowedFd<'_>| UnixDatagram::from_std(fd.try_clone_to_owned()?.into());
        Ok(Self { arrived: readable(host.fd())?, room: readable(host.room_fd())?, host })
    }

    /// Waits for a packet from the tunnel, and returns its length. A packet that is longer than `buffer` is truncated.
    /// Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] when the device has ended and all its packets were received.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.arrived.async_io(Interest::READABLE, || self.host.try_recv(buffer)).await
    }

    /// Gives a packet to the tunnel. Waits while 500 packets are queued. Cancel safe.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for more than 65,535 bytes, [`io::ErrorKind::NotConnected`] when the device has
    /// ended.
    pub async fn send(&self, packet: &[u8]) -> io::Result<()> {
        self.room.async_io(Interest::READABLE, || self.host.send(packet)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_tun::{HEADROOM, Span, TunQueue as _, memory};
    use std::{sync::Arc, time::Duration};

    /// Ten thousand packets each way, twenty times the size of the queue, and then the device ends.
    #[tokio::test]
    async fn both_ends_wait_for_each_other() {
        const PACKETS: u32 = 10_000;
        let (mut tun, host) = memory::tun().unwrap();
        let host = Arc::new(AsyncMemoryHost::new(host).unwrap());
        let device = std::thread::spawn(move || {
            let mut slab = vec![0; tun.max_read()];
            let (mut taken, mut given) = (0, 0);
            while taken < PACKETS || given < PACKETS {
                if let Some(packet) = tun.read(&mut slab, 0, 1_420).unwrap() {
                    assert_eq!(slab[packet.offset..packet.offset + packet.len], taken.to_be_bytes());
                    taken += 1;
                }
                if given < PACKETS {
                    slab[HEADROOM..HEADROOM + 4].copy_from_slice(&given.to_be_bytes());
                    given += 1 - tun.write(&mut slab, &[Span { offset: HEADROOM, len: 4 }]).unwrap() as u32;
                }
            }
        });
        let sender = Arc::clone(&host);
        let sending = tokio::spawn(async move {
            for n in 0..PACKETS {
                sender.send(&n.to_be_bytes()).await.unwrap();
            }
        });
        let mut buffer = [0; 8];
        for n in 0..PACKETS {
            let received = tokio::time::timeout(Duration::from_secs(60), host.recv(&mut buffer)).await;
            assert_eq!(received.expect("a packet").unwrap(), 4);
            assert_eq!(buffer[..4], n.to_be_bytes());
        }
        sending.await.unwrap();
        device.join().unwrap();
        // The device has ended.
        assert_eq!(host.recv(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(host.send(&buffer).await.unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(host.send(&[0; 65_536]).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
