//! What is inside the sealed parts of messages.
use crate::{
    client::{JoinError, MAX_DNS, MAX_ROUTES, MAX_SEARCH},
    lease::{MAX_NAME, clean_name},
    server::{ServerConfig, ServerError},
    wire::{GRANT_TEXT, INITIATION_TEXT, MAX_DATAGRAM, PROOF_TEXT, RESPONSE_OVERHEAD, Reader, WELCOME_OVERHEAD},
};
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};
use ipnet::IpNet;
use rustguard_core::wire::TIMESTAMP_LEN;
use rustguard_crypto::x25519::PublicKey;
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes the settings may take: what fits into the one with more around it of the two messages that carry them.
pub(crate) const MAX_SETTINGS: usize = MAX_DATAGRAM - RESPONSE_OVERHEAD;
const _: () = assert!(WELCOME_OVERHEAD <= RESPONSE_OVERHEAD);

const FLAG_EPHEMERAL: u8 = 1;
/// Bytes by which an initiation proves the joiner's WireGuard key.
pub(crate) const PROOF_OF_KEY: usize = 16;

/// Who wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joiner {
    pub(crate) public_key: PublicKey,
    pub(crate) name: Option<String>,
    /// It asks to be forgotten when it is silent.
    pub(crate) ephemeral: bool,
}

impl Joiner {
    /// `public key 32 | flags 1 | length 1 | name`.
    fn write(&self, to: &mut Vec<u8>) {
        let name = self.name.as_deref().unwrap_or_default().as_bytes();
        let name = &name[..name.len().min(MAX_NAME)];
        to.extend_from_slice(&self.public_key.0);
        to.push(if self.ephemeral { FLAG_EPHEMERAL } else { 0 });
        to.push(name.len() as u8);
        to.extend_from_slice(name);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let public_key = PublicKey(*from.take()?);
        let [flags, len] = *from.take()?;
        let name = from.take_slice(usize::from(len))?;
        if usize::from(len) > MAX_NAME {
            return None;
        }
        let name = clean_name(&String::from_utf8_lossy(name));
        Some(Self { public_key, name, ephemeral: flags & FLAG_EPHEMERAL != 0 })
    }

    /// The text of an initiation: `timestamp 12 | joiner | proof 16 | zeros`. `prove` makes the proof of what stands before it.
    pub(crate) fn initiation_text(
        &self,
        timestamp: &[u8; TIMESTAMP_LEN],
        prove: impl FnOnce(&[u8]) -> [u8; PROOF_OF_KEY],
    ) -> [u8; INITIATION_TEXT] {
        let mut text = timestamp.to_vec();
        self.write(&mut text);
        let proof = prove(&text);
        text.extend_from_slice(&proof);
        padded(text)
    }

    /// The timestamp, the joiner, and its proof. A program that makes none has zeros there.
    pub(crate) fn from_initiation(text: &[u8]) -> Option<([u8; TIMESTAMP_LEN], Self, ProofOfKey<'_>)> {
        let mut fields = Reader(text);
        let (timestamp, joiner) = (*fields.take()?, Self::read(&mut fields)?);
        let proven = &text[..text.len() - fields.0.len()];
        Some((timestamp, joiner, ProofOfKey { text: proven, mac: fields.take()? }))
    }

    /// The text of a proof: `nonce 32 | joiner | zeros`.
    pub(crate) fn proof_text(&self, nonce: &[u8; 32]) -> [u8; PROOF_TEXT] {
        let mut text = nonce.to_vec();
        self.write(&mut text);
        padded(text)
    }

    pub(crate) fn from_proof(text: &[u8]) -> Option<Self> {
        let mut fields = Reader(text);
        fields.take::<32>()?;
        Self::read(&mut fields)
    }
}

fn padded<const N: usize>(mut text: Vec<u8>) -> [u8; N] {
    text.resize(N, 0);
    text.try_into().expect("resized to N")
}

/// By what an initiation proves the joiner's WireGuard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProofOfKey<'t> {
    /// What stands before it.
    pub(crate) text: &'t [u8],
    pub(crate) mac: &'t [u8; PROOF_OF_KEY],
}

/// What a server answers to somebody it has authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    /// An administrator has to approve.
    Wait,
    Refused(JoinError),
}

impl Verdict {
    fn code(self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Wait => 1,
            Self::Refused(error) => match error {
                JoinError::PoolExhausted(_) => 2,
                JoinError::AddressTaken => 3,
                JoinError::Removed => 4,
                JoinError::TokenSpent => 5,
                JoinError::QueueFull => 7,
                JoinError::NotApproved => 8,
                // The others are never the server's to say.
                JoinError::ServerFailed | JoinError::NotAccepted | JoinError::Unreadable | JoinError::BadKey => 6,
            },
        }
    }

    fn from_code(code: u8, wait: Option<Duration>) -> Option<Self> {
        Some(match code {
            0 => Self::Accepted,
            1 => Self::Wait,
            2 => Self::Refused(JoinError::PoolExhausted(wait)),
            3 => Self::Refused(JoinError::AddressTaken),
            4 => Self::Refused(JoinError::Removed),
            5 => Self::Refused(JoinError::TokenSpent),
            6 => Self::Refused(JoinError::ServerFailed),
            7 => Self::Refused(JoinError::QueueFull),
            8 => Self::Refused(JoinError::NotApproved),
            _ => return None,
        })
    }
}

/// What a welcome or response says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Settings(PublicKey, ServerConfig),
    Wait,
    Refused(JoinError),
}

/// `verdict 1`, which is not followed by settings.
pub(crate) fn short_greeting(verdict: Verdict) -> Vec<u8> {
    vec![verdict.code()]
}

/// The settings: `0 | server 32 | mtu 2 | port 2 | keepalive 2 | addresses | routes | DNS | search`, numbers little-endian with 0
/// for none, each list a count of one byte and its elements.
pub(crate) fn settings(server: &PublicKey, config: &ServerConfig) -> Result<Vec<u8>, ServerError> {
    // What a joiner takes, less the routes to the server's own addresses that it adds.
    let counts = [
        ("routes", config.routes.len(), MAX_ROUTES - config.addresses.len().min(2)),
        ("name servers", config.dns.len(), MAX_DNS),
        ("search domains", config.search.len(), MAX_SEARCH),
    ];
    if let Some((what, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
        return Err(ServerError::TooMany { what, count, most });
    }
    settings_unchecked(server, config)
}

/// As [`settings`], however many there are of everything.
pub(crate) fn settings_unchecked(server: &PublicKey, config: &ServerConfig) -> Result<Vec<u8>, ServerError> {
    let mut text = vec![Verdict::Accepted.code()];
    text.extend_from_slice(&server.0);
    for number in [config.mtu, config.port, config.keepalive] {
        text.extend_from_slice(&number.unwrap_or(0).to_le_bytes());
    }
    let mut fits = write_list(&mut text, &config.addresses, |to, address| write_address(to, *address));
    fits &= write_list(&mut text, &config.routes, |to, net| {
        write_address(to, net.addr());
        to.push(net.prefix_len());
    });
    fits &= write_list(&mut text, &config.dns, |to, address| write_address(to, *address));
    fits &= config.search.iter().all(|domain| domain.len() <= 255);
    fits &= write_list(&mut text, &config.search, |to, domain| {
        to.push(domain.len() as u8);
        to.extend_from_slice(domain.as_bytes());
    });
    if fits && text.len() <= MAX_SETTINGS {
        Ok(text)
    } else {
        Err(ServerError::SettingsTooLong(text.len(), MAX_SETTINGS))
    }
}

impl Greeting {
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut fields = Reader(text);
        let [code] = *fields.take()?;
        match Verdict::from_code(code, None)? {
            Verdict::Wait => Some(Self::Wait),
            Verdict::Refused(error) => Some(Self::Refused(error)),
            Verdict::Accepted => {
                let server = PublicKey(*fields.take()?);
                let mut number = || fields.take().map(|bytes| Some(u16::from_le_bytes(*bytes)).filter(|&n| n != 0));
                let (mtu, port, keepalive) = (number()?, number()?, number()?);
                let addresses = read_list(&mut fields, read_address)?;
                let routes = read_list(&mut fields, |from| {
                    let address = read_address(from)?;
                    let [len] = *from.take()?;
                    IpNet::new(address, len).ok()
                })?;
                let dns = read_list(&mut fields, read_address)?;
                let search = read_list(&mut fields, |from| {
                    let [len] = *from.take()?;
                    let domain = core::str::from_utf8(from.take_slice(usize::from(len))?).ok()?;
                    // It ends up in configuration files: no white space, nothing that could begin another line.
                    domain.bytes().all(|byte| byte.is_ascii_graphic()).then(|| domain.to_owned())
                })?;
                let config = ServerConfig { addresses, routes, dns, search, mtu, port, keepalive };
                fields.0.is_empty().then_some(Self::Settings(server, config))
            }
        }
    }
}

/// The sealed part of a grant. `Debug` is not implemented: it has the preshared key.
pub(crate) struct GrantText {
    pub(crate) verdict: Verdict,
    pub(crate) ephemeral: bool,
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
    /// Seconds since the Unix epoch.
    pub(crate) expires: Option<u64>,
    pub(crate) preshared_key: Zeroizing<[u8; 32]>,
}

impl GrantText {
    pub(crate) fn refused(error: JoinError) -> Self {
        Self {
            verdict: Verdict::Refused(error),
            ephemeral: false,
            v4: None,
            v6: None,
            expires: None,
            preshared_key: Zeroizing::default(),
        }
    }

    /// `verdict 1 | flags 1 | IPv4 4 | IPv6 16 | expires 8 | preshared key 32 | wait 4 | zeros`, zeros for what is none.
    pub(crate) fn write(&self) -> Zeroizing<[u8; GRANT_TEXT]> {
        let wait = match self.verdict {
            Verdict::Refused(JoinError::PoolExhausted(Some(wait))) => u32::try_from(wait.as_secs()).unwrap_or(u32::MAX),
            _ => 0,
        };
        let mut text = Zeroizing::new(Vec::with_capacity(GRANT_TEXT));
        text.push(self.verdict.code());
        text.push(if self.ephemeral { FLAG_EPHEMERAL } else { 0 });
        text.extend_from_slice(&self.v4.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        text.extend_from_slice(&self.v6.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        text.extend_from_slice(&self.expires.unwrap_or(0).to_le_bytes());
        text.extend_from_slice(&*self.preshared_key);
        text.extend_from_slice(&wait.to_le_bytes());
        text.resize(GRANT_TEXT, 0);
        let mut out = Zeroizing::new([0; GRANT_TEXT]);
        out.copy_from_slice(&text);
        text.zeroize();
        out
    }

    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut fields = Reader(text);
        let [code, flags] = *fields.take()?;
        let v4 = Some(Ipv4Addr::from(*fields.take::<4>()?)).filter(|address| !address.is_unspecified());
        let v6 = Some(Ipv6Addr::from(*fields.take::<16>()?)).filter(|address| !address.is_unspecified());
        let expires = Some(u64::from_le_bytes(*fields.take()?)).filter(|&time| time != 0);
        let preshared_key = Zeroizing::new(*fields.take()?);
        let wait = Some(u32::from_le_bytes(*fields.take()?)).filter(|&seconds| seconds != 0);
        let verdict = Verdict::from_code(code, wait.map(|seconds| Duration::from_secs(u64::from(seconds))))?;
        Some(Self { verdict, ephemeral: flags & FLAG_EPHEMERAL != 0, v4, v6, expires, preshared_key })
    }
}

/// False when there are more elements than a byte counts.
fn write_list<T>(to: &mut Vec<u8>, list: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) -> bool {
    to.push(list.len() as u8);
    list.iter().for_each(|element| write(to, element));
    list.len() <= 255
}

fn read_list<'d, T>(from: &mut Reader<'d>, mut read: impl FnMut(&mut Reader<'d>) -> Option<T>) -> Option<Vec<T>> {
    let [count] = *from.take()?;
    (0..count).map(|_| read(from)).collect()
}

/// `4 | IPv4 4` or `6 | IPv6 16`.
fn write_address(to: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            to.push(4);
            to.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            to.push(6);
            to.extend_from_slice(&address.octets());
        }
    }
}

fn read_address(from: &mut Reader<'_>) -> Option<IpAddr> {
    match from.take()? {
        [4] => Some(IpAddr::from(*from.take::<4>()?)),
        [6] => Some(IpAddr::from(*from.take::<16>()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> ServerConfig {
        let parse = |text: &str| text.parse().expect("an address");
        ServerConfig {
            addresses: vec![parse("10.150.0.1"), parse("fd15::1")],
            routes: vec!["10.150.0.0/24".parse().expect("a prefix"), "fd15::/64".parse().expect("a prefix")],
            dns: vec![parse("10.150.0.1")],
            search: vec!["example.org".to_owned()],
            mtu: Some(1420),
            port: None,
            keepalive: Some(25),
        }
    }

    #[test]
    fn settings_come_back_and_damaged_ones_do_not() {
        let server = PublicKey([5; 32]);
        for config in [config(), ServerConfig::default()] {
            let text = settings(&server, &config).expect("fits");
            assert_eq!(Greeting::read(&text), Some(Greeting::Settings(server, config)));
            for cut in 0..text.len() {
                assert_eq!(Greeting::read(&text[..cut]), None, "{cut} bytes");
            }
            assert_eq!(Greeting::read(&[&text[..], &[0]].concat()), None, "something behind");
        }
        assert_eq!(Greeting::read(&short_greeting(Verdict::Wait)), Some(Greeting::Wait));
        assert_eq!(Greeting::read(&[99]), None);
    }

    #[test]
    fn settings_that_do_not_fit_are_refused_when_the_server_starts() {
        let server = PublicKey([5; 32]);
        let route: IpNet = "fd15::/64".parse().expect("a prefix");
        let with = |n| ServerConfig { routes: vec![route; n], ..ServerConfig::default() };
        // 43 bytes without routes, 18 for each.
        assert_eq!(settings(&server, &with(62)).expect("fits").len(), 43 + 62 * 18);
        assert!(matches!(settings(&server, &with(63)), Err(ServerError::SettingsTooLong(1177, MAX_SETTINGS))));
        assert!(matches!(settings(&server, &with(65)), Err(ServerError::TooMany { count: 65, most: 64, .. })));
        assert!(settings_unchecked(&server, &with(256)).is_err());
        let search = vec!["x".repeat(256)];
        assert!(settings(&server, &ServerConfig { search, ..ServerConfig::default() }).is_err());
    }

    #[test]
    fn a_search_domain_cannot_smuggle_lines() {
        let config = ServerConfig { search: vec!["a\nPostUp=x".to_owned()], ..ServerConfig::default() };
        let text = settings(&PublicKey([5; 32]), &config).expect("fits");
        assert_eq!(Greeting::read(&text), None);
    }

    #[test]
    fn joiners_come_back_with_clean_names() {
        for (name, clean) in [(None, None), (Some("node-1"), Some("node-1")), (Some("a b\x1b[1m"), Some("a-b--1m"))] {
            let joiner = Joiner { public_key: PublicKey([1; 32]), name: name.map(str::to_owned), ephemeral: true };
            let expected = Joiner { name: clean.map(str::to_owned), ..joiner.clone() };
            let mut proven = Vec::new();
            let text = joiner.initiation_text(&[3; 12], |text| {
                proven = text.to_vec();
                [9; 16]
            });
            assert_eq!(
                Joiner::from_initiation(&text),
                Some(([3; 12], expected.clone(), ProofOfKey { text: &proven, mac: &[9; 16] }))
            );
            assert_eq!(Joiner::from_proof(&joiner.proof_text(&[4; 32])), Some(expected));
        }
        let mut text = Joiner { public_key: PublicKey([1; 32]), name: None, ephemeral: false }.proof_text(&[0; 32]);
        text[65] = 64;
        assert_eq!(Joiner::from_proof(&text), None, "a name of 64 bytes");
    }

    #[test]
    fn grants_come_back() {
        let text = GrantText {
            verdict: Verdict::Accepted,
            ephemeral: true,
            v4: Some(Ipv4Addr::new(10, 150, 0, 2)),
            v6: None,
            expires: Some(1_800_000_000),
            preshared_key: Zeroizing::new([7; 32]),
        };
        let read = GrantText::read(&*text.write()).expect("itself");
        assert_eq!((read.verdict, read.ephemeral, read.v4, read.v6), (text.verdict, true, text.v4, None));
        assert_eq!((read.expires, read.preshared_key), (text.expires, text.preshared_key));
        let errors = [
            JoinError::PoolExhausted(None),
            JoinError::PoolExhausted(Some(Duration::from_secs(77))),
            JoinError::AddressTaken,
            JoinError::Removed,
            JoinError::TokenSpent,
            JoinError::ServerFailed,
            JoinError::QueueFull,
            JoinError::NotApproved,
        ];
        for error in errors {
            let read = GrantText::read(&*GrantText::refused(error).write()).expect("itself");
            assert_eq!(read.verdict, Verdict::Refused(error));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (Greeting::read(&text), GrantText::read(&text), Joiner::from_proof(&text));
        }
    }
}
