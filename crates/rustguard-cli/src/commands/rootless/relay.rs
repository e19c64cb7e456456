//! Bytes and datagrams between the host and the tunnel.

use rustguard_netstack as inside;
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes},
    net::UdpSocket,
    time::timeout,
};

/// Bytes that are copied at a time.
const CHUNK: usize = 64 * 1_024;
/// The longest datagram.
const DATAGRAM: usize = 65_535;
/// The most senders of datagrams of one way at once.
const SENDERS: usize = 256;
/// How many of them may have one address.
const OF_ONE: usize = 32;
/// How long answers come back to a sender that is silent (RFC 4787 section 4.3: two minutes or more).
const IDLE: Duration = Duration::from_secs(120);

/// Copies both ways until both ends have closed, or one is broken.
pub(super) async fn bytes(
    one: &mut (impl AsyncRead + AsyncWrite + Unpin),
    other: &mut (impl AsyncRead + AsyncWrite + Unpin),
) {
    // Both ends learn of it.
    if let Err(error) = copy_bidirectional_with_sizes(one, other, CHUNK, CHUNK).await {
        tracing::debug!("a connection broke: {error}");
    }
}

/// A socket for datagrams, of the host or inside the tunnel.
pub(super) trait Datagrams: Send + Sync + 'static {
    fn send(&self, bytes: &[u8], to: SocketAddr) -> impl Future<Output = io::Result<()>> + Send;
    fn receive(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send;
}

impl Datagrams for UdpSocket {
    async fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send_to(bytes, to).await.map(drop)
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer).await
    }
}

impl Datagrams for inside::UdpSocket {
    async fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send_to(bytes, to).await
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer).await
    }
}

/// The socket of each sender, and the address on the other side.
type Senders<F> = Mutex<HashMap<SocketAddr, (Arc<F>, SocketAddr)>>;

/// Relays the datagrams that come to `near`, each sender by a socket of its own, which `open` makes together with the
/// address on the other side. It does not end.
pub(super) async fn datagrams<N, F, O>(near: Arc<N>, open: impl Fn() -> O)
where
    N: Datagrams,
    F: Datagrams,
    O: Future<Output = io::Result<(F, SocketAddr)>>,
{
    let senders: Arc<Senders<F>> = Arc::default();
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let (len, from) = match near.receive(&mut buffer).await {
            Ok(received) => received,
            // An answer of ICMP to an earlier datagram, unless the tunnel has ended.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
            Err(_) => continue,
        };
        let lock = || senders.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&from).cloned();
        let (far, to) = match known {
            Some(known) => known,
            None => {
                let of_one = lock().keys().filter(|known| known.ip() == from.ip()).count();
                if of_one >= OF_ONE || lock().len() >= SENDERS {
                    continue;
                }
                let (far, to) = match open().await {
                    Ok((far, to)) => (Arc::new(far), to),
                    Err(error) => {
                        tracing::debug!("a datagram goes nowhere: {error}");
                        continue;
                    }
                };
                lock().insert(from, (Arc::clone(&far), to));
                let (near, senders, answers) = (Arc::clone(&near), Arc::clone(&senders), Arc::clone(&far));
                tokio::spawn(async move {
                    let mut buffer = vec![0; DATAGRAM];
                    // Others may send to this socket as well.
                    while let Ok(Ok((len, source))) = timeout(IDLE, answers.receive(&mut buffer)).await {
                        if source == to && near.send(&buffer[..len], from).await.is_err() {
                            break;
                        }
                    }
                    senders.lock().unwrap_or_else(PoisonError::into_inner).remove(&from);
                });
                (far, to)
            }
        };
        // As on any link, it may be lost.
        let _ = far.send(&buffer[..len], to).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bound(at: &str) -> UdpSocket {
        UdpSocket::bind((at, 0)).await.unwrap()
    }

    /// Who sends by many ports keeps nobody else out.
    #[tokio::test]
    async fn senders_of_one_address_have_their_share() {
        let (near, echo) = (Arc::new(bound("127.0.0.1").await), bound("127.0.0.1").await);
        let (at, to) = (near.local_addr().unwrap(), echo.local_addr().unwrap());
        tokio::spawn(async move {
            let mut buffer = [0; 16];
            while let Ok((len, from)) = echo.recv_from(&mut buffer).await {
                echo.send_to(&buffer[..len], from).await.unwrap();
            }
        });
        tokio::spawn(datagrams(near, move || async move { Ok((bound("127.0.0.1").await, to)) }));
        let ask = async |socket: &UdpSocket| {
            socket.send_to(b"hello", at).await.unwrap();
            let mut buffer = [0; 16];
            let answer = timeout(Duration::from_secs(20), socket.recv_from(&mut buffer)).await;
            assert_eq!(&buffer[..answer.expect("an answer").unwrap().0], b"hello");
        };
        let mut senders = Vec::new();
        for _ in 0..OF_ONE {
            senders.push(bound("127.0.0.1").await);
            ask(senders.last().unwrap()).await;
        }
        let more = bound("127.0.0.1").await;
        more.send_to(b"hello", at).await.unwrap();
        ask(&bound("127.0.0.2").await).await;
        ask(&senders[0]).await;
        assert!(more.try_recv_from(&mut [0; 16]).is_err(), "one address has more than its share");
    }
}
