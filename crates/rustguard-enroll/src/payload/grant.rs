//! The contents of a grant: the lease, or the reason of a refusal.
use super::decision::Decision;
use crate::{
    join_error::JoinError,
    wire::{GRANT_TEXT, Reader},
};
use core::{
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};
use zeroize::{Zeroize as _, Zeroizing};

/// The lease is ephemeral.
const FLAG_EPHEMERAL: u8 = 1;
/// The network's key is there.
const FLAG_NETWORK: u8 = 2;

/// The sealed part of a grant. `Debug` is not implemented because it contains the preshared key.
pub(crate) struct GrantText {
    pub(crate) decision: Decision,
    pub(crate) ephemeral: bool,
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
    /// Seconds since the Unix epoch.
    pub(crate) expires: Option<u64>,
    pub(crate) preshared_key: Zeroizing<[u8; 32]>,
    /// The network's public key. Only joiners that can be members get it.
    pub(crate) network: Option<[u8; 32]>,
}

impl GrantText {
    pub(crate) fn refused(error: JoinError) -> Self {
        Self {
            decision: Decision::Refused(error),
            ephemeral: false,
            v4: None,
            v6: None,
            expires: None,
            preshared_key: Zeroizing::default(),
            network: None,
        }
    }

    /// `decision 1 | flags 1 | IPv4 4 | IPv6 16 | expires 8 | preshared key 32 | network key 32 | zeros`. An absent
    /// field is zero. A refusal has no network key: the first 4 bytes of its place are the time to wait.
    pub(crate) fn write(&self) -> Zeroizing<[u8; GRANT_TEXT]> {
        let wait = match self.decision {
            Decision::Refused(JoinError::PoolExhausted(Some(wait))) => {
                u32::try_from(wait.as_secs()).unwrap_or(u32::MAX)
            }
            _ => 0,
        };
        let mut text = Zeroizing::new(Vec::with_capacity(GRANT_TEXT));
        text.push(self.decision.code());
        let ephemeral = if self.ephemeral { FLAG_EPHEMERAL } else { 0 };
        text.push(ephemeral | if self.network.is_some() { FLAG_NETWORK } else { 0 });
        text.extend_from_slice(&self.v4.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        text.extend_from_slice(&self.v6.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        text.extend_from_slice(&self.expires.unwrap_or(0).to_le_bytes());
        text.extend_from_slice(&*self.preshared_key);
        match &self.network {
            Some(network) => text.extend_from_slice(network),
            None => text.extend_from_slice(&wait.to_le_bytes()),
        }
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
        let field: &[u8; 32] = fields.take()?;
        let network = (flags & FLAG_NETWORK != 0).then_some(*field);
        // A key of zeros signs nothing.
        if network == Some([0; 32]) {
            return None;
        }
        let wait = field.first_chunk().map(|wait| u32::from_le_bytes(*wait)).filter(|&seconds| seconds != 0);
        let decision = Decision::from_code(code, wait.map(|seconds| Duration::from_secs(u64::from(seconds))))?;
        Some(Self { decision, ephemeral: flags & FLAG_EPHEMERAL != 0, v4, v6, expires, preshared_key, network })
    }
}
