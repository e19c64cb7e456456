//! Traffic from strangers: floods, and the datagrams in them.
use anyhow::{Context, Result, ensure};
use rand::Rng as _;
use rustguard_core::time::{Instant as CoreInstant, Now};
use rustguard_crypto::x25519::StaticSecret;
use rustguard_enroll::{
    client::Client,
    token::{Invite, Token},
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant, SystemTime},
};

/// Equal datagrams to one address.
///
/// Its form as arguments of a program is `ADDRESS NANOSECONDS PORT RATE FIRST COUNT DATAGRAM`. The last one is in
/// hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flood {
    /// The destination.
    pub to: SocketAddr,
    /// The duration.
    pub time: Duration,
    /// Datagrams per second. Without a limit, as many as the system accepts.
    pub rate: Option<u64>,
    /// The first source address and the number of source addresses, which are used in turn. Only for IPv4. If `None`,
    /// the system chooses one.
    pub sources: Option<(Ipv4Addr, u32)>,
    /// The bytes of the datagram.
    pub datagram: Vec<u8>,
}

impl Flood {
    /// A flood from one source, as fast as possible.
    pub fn new(to: SocketAddr, time: Duration, datagram: Vec<u8>) -> Self {
        Self { to, time, rate: None, sources: None, datagram }
    }

    /// Reads the words of its `Display`.
    ///
    /// # Errors
    /// If the words are not of that form.
    pub fn from_words<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Self> {
        let words: Vec<&str> = words.into_iter().collect();
        let [address, nanos, port, rate, first, count, datagram] = *words else {
            anyhow::bail!("ADDRESS NANOSECONDS PORT RATE FIRST COUNT DATAGRAM, not {words:?}")
        };
        let count = count.parse()?;
        ensure!(datagram.is_ascii() && datagram.len() % 2 == 0, "a datagram in hexadecimal");
        let bytes = (0..datagram.len()).step_by(2).map(|at| u8::from_str_radix(&datagram[at..at + 2], 16));
        Ok(Self {
            to: SocketAddr::new(address.parse()?, port.parse()?),
            time: Duration::from_nanos(nanos.parse()?),
            rate: Some(rate.parse()?).filter(|&rate| rate > 0),
            sources: if count > 0 { Some((first.parse()?, count)) } else { None },
            datagram: bytes.collect::<Result<_, _>>()?,
        })
    }

    /// Sends the flood. Returns the number of datagrams that the system accepted. Full queues and ICMP errors are not
    /// failures here.
    ///
    /// # Errors
    /// If no socket can be created.
    pub fn run(&self) -> Result<u64> {
        let sockets = match self.sources {
            Some((first, count)) => {
                (0..count).map(|n| self.socket(Ipv4Addr::from_bits(first.to_bits() + n).into())).collect()
            }
            // One socket for both IP versions, if the system has both.
            None => self
                .socket(Ipv6Addr::UNSPECIFIED.into())
                .or_else(|_| self.socket(Ipv4Addr::UNSPECIFIED.into()))
                .map(|it| vec![it]),
        };
        let sockets: Vec<UdpSocket> = sockets?;
        let (started, mut tried, mut sent) = (Instant::now(), 0_u64, 0);
        for socket in sockets.iter().cycle() {
            let mut elapsed = started.elapsed();
            // All due datagrams are sent at once. A timer for each would use a core.
            while elapsed < self.time && self.rate.is_some_and(|rate| tried >= due(rate, elapsed)) {
                std::thread::sleep(Duration::from_micros(200));
                elapsed = started.elapsed();
            }
            if elapsed >= self.time {
                break;
            }
            tried += 1;
            sent += u64::from(socket.send(&self.datagram).is_ok());
        }
        Ok(sent)
    }

    fn socket(&self, own: IpAddr) -> Result<UdpSocket> {
        let socket = UdpSocket::bind((own, 0)).with_context(|| format!("send from {own}"))?;
        let to = match self.to.ip() {
            IpAddr::V4(to) if own.is_ipv6() => to.to_ipv6_mapped().into(),
            to => to,
        };
        socket.connect((to, self.to.port()))?;
        Ok(socket)
    }
}

impl fmt::Display for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, count) = self.sources.unwrap_or((Ipv4Addr::UNSPECIFIED, 0));
        let (rate, nanos) = (self.rate.unwrap_or(0), self.time.as_nanos());
        write!(f, "{} {nanos} {} {rate} {first} {count} ", self.to.ip(), self.to.port())?;
        self.datagram.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn due(rate: u64, elapsed: Duration) -> u64 {
    // The number fits for any duration of a flood.
    u64::try_from(elapsed.as_nanos() * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// The first message of a stranger who knows the server of an invite, but has no invite. Its MAC1 is valid.
///
/// # Errors
/// If the token is invalid.
pub fn stranger(token: &str) -> Result<Vec<u8>> {
    let rng = &mut rand::rng();
    let server = *Invite::parse(token)?.server();
    let made_up = Token::Invite(Invite::generate(server, None, rng)?);
    let mut key = [0; 32];
    rng.fill_bytes(&mut key);
    let now = Now { instant: CoreInstant::from_nanos(0), unix: SystemTime::UNIX_EPOCH.elapsed()? };
    let mut client = Client::new(made_up, StaticSecret::from_bytes(key), now)?.with_name("stranger".to_owned());
    client.poll(now, rng)?.context("a first message")
}

/// The same message with a wrong MAC1, from a stranger who does not know the server.
///
/// # Errors
/// If the token is invalid.
pub fn garbage(token: &str) -> Result<Vec<u8>> {
    let mut message = stranger(token)?;
    // MAC1 and MAC2 are the last 32 bytes.
    let mac1 = message.len() - 32;
    message[mac1] ^= 1;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_survives_the_command_line() {
        let to = SocketAddr::from(([10, 1, 0, 1], 51_820));
        let plain = Flood::new(to, Duration::from_millis(1_500), vec![0, 0xab, 0xff]);
        let paced = Flood { rate: Some(100_000), sources: Some(([10, 2, 1, 0].into(), 250)), ..plain.clone() };
        for flood in [plain, paced] {
            assert_eq!(Flood::from_words(flood.to_string().split(' ')).unwrap(), flood);
        }
        for wrong in ["", "10.1.0.1 1 1 0 0.0.0.0 0", "10.1.0.1 1 1 0 0.0.0.0 0 abc", "x 1 1 0 0.0.0.0 0 ab"] {
            assert!(Flood::from_words(wrong.split(' ')).is_err(), "{wrong}");
        }
    }
}
