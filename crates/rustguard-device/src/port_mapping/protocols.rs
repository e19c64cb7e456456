//! The requests to a router: PCP first, NAT-PMP if the router says that it speaks NAT-PMP, then UPnP.

use super::{Wanted, is_outside};
use crab_nat::{InternetProtocol, PortMapping, PortMappingOptions, PortMappingType, TimeoutConfig, natpmp};
use igd_next::{
    PortMappingProtocol, SearchOptions,
    aio::{
        Gateway,
        tokio::{Tokio, search_gateway},
    },
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

/// The requested lifetime in seconds. After a crash the router keeps the mapping for up to this time.
const LIFETIME: u32 = 3600;
/// Three requests in less than two seconds: the router is only one hop away.
const TIMES: TimeoutConfig =
    TimeoutConfig { initial_timeout: Duration::from_millis(250), max_retries: 2, max_retry_timeout: None };
/// How long UPnP searches for devices.
const SEARCH: Duration = Duration::from_secs(3);
/// The description that routers show to their owners.
const DESCRIPTION: &str = "RustGuard";

/// A mapping at a router.
pub(super) struct Mapping {
    pub(super) wanted: Wanted,
    /// The external address.
    pub(super) external: SocketAddrV4,
    /// The lifetime that the router reports.
    pub(super) lifetime: Duration,
    by: By,
}

enum By {
    /// PCP or NAT-PMP.
    Pcp(Box<PortMapping>),
    Upnp(Box<Gateway<Tokio>>),
}

impl Mapping {
    /// Asks the router by each protocol until one works.
    pub(super) async fn ask(wanted: Wanted) -> Option<Self> {
        match Self::by_pcp(wanted).await {
            Ok(mapping) => return Some(mapping),
            // Debug, because the text may have parts from outside.
            Err(error) => tracing::debug!("no mapping by PCP or NAT-PMP: {error:?}"),
        }
        match Self::by_upnp(wanted).await {
            Ok(mapping) => Some(mapping),
            Err(error) => {
                tracing::debug!("no mapping by UPnP: {error:?}");
                None
            }
        }
    }

    pub(super) async fn by_pcp(wanted: Wanted) -> Result<Self, String> {
        let options = PortMappingOptions {
            external_port: Some(wanted.port),
            lifetime_seconds: Some(LIFETIME),
            timeout_config: Some(TIMES),
        };
        let (router, own) = (wanted.router.into(), wanted.own.into());
        let made = PortMapping::new(router, own, InternetProtocol::Udp, wanted.port, options).await;
        Self::from_pcp(wanted, made.map_err(|error| error.to_string())?).await
    }

    async fn from_pcp(wanted: Wanted, made: PortMapping) -> Result<Self, String> {
        let lifetime = Duration::from_secs(made.lifetime().min(LIFETIME).into());
        match outside_by_pcp(wanted, &made).await {
            Ok(external) => Ok(Self { wanted, external, lifetime, by: By::Pcp(Box::new(made)) }),
            Err(error) => {
                // A mapping that is of no use is not left behind.
                if let Err((error, _)) = made.try_drop().await {
                    tracing::debug!("the router did not take the mapping back: {error:?}");
                }
                Err(error)
            }
        }
    }

    async fn by_upnp(wanted: Wanted) -> Result<Self, String> {
        let mut options = SearchOptions::default();
        // Multicast from this address leaves by its interface, whatever the routes say (ip_route_output_key in the
        // kernel).
        options.bind_addr = SocketAddr::new(wanted.own.into(), 0);
        options.timeout = Some(SEARCH);
        let gateway = search_gateway(options).await.map_err(|error| error.to_string())?;
        if gateway.addr.ip() != IpAddr::V4(wanted.router) {
            // Any machine in the network can answer.
            return Err(format!("{} is not this network's router", gateway.addr.ip()));
        }
        Self::at_gateway(wanted, gateway).await
    }

    pub(super) async fn at_gateway(wanted: Wanted, gateway: Gateway<Tokio>) -> Result<Self, String> {
        // Asked before the mapping, so that no mapping is left behind if the address is of no use.
        let ip = outside_by_upnp(&gateway).await?;
        let own = SocketAddr::new(wanted.own.into(), wanted.port.get());
        let added = gateway.add_any_port(PortMappingProtocol::UDP, own, LIFETIME, DESCRIPTION).await;
        let port = added.map_err(|error| error.to_string())?;
        if port == 0 {
            return Err("the router gives no port".into());
        }
        Ok(Self {
            wanted,
            external: SocketAddrV4::new(ip, port),
            lifetime: Duration::from_secs(LIFETIME.into()),
            by: By::Upnp(Box::new(gateway)),
        })
    }

    /// Asks for more time. Returns false if there is no mapping any more.
    pub(super) async fn renew(&mut self) -> bool {
        let renewed = match &mut self.by {
            By::Pcp(made) => {
                let mut made = made.clone();
                match made.renew().await {
                    Ok(()) => Self::from_pcp(self.wanted, *made).await,
                    Err(error) => Err(error.to_string()),
                }
            }
            By::Upnp(gateway) => match renew_by_upnp(gateway, self.wanted, self.external.port()).await {
                Ok(ip) => {
                    self.external.set_ip(ip);
                    return true;
                }
                Err(error) => Err(error),
            },
        };
        match renewed {
            Ok(renewed) => {
                *self = renewed;
                true
            }
            Err(error) => {
                tracing::debug!("the mapping was not renewed: {error:?}");
                false
            }
        }
    }

    /// Removes the mapping.
    pub(super) async fn release(self) {
        let released = match self.by {
            By::Pcp(made) => made.try_drop().await.map_err(|(error, _)| error.to_string()),
            By::Upnp(gateway) => {
                let removed = gateway.remove_port(PortMappingProtocol::UDP, self.external.port()).await;
                removed.map_err(|error| error.to_string())
            }
        };
        if let Err(error) = released {
            tracing::debug!("the router did not take the mapping back: {error:?}");
        }
    }

    /// The protocol's name.
    pub(super) fn protocol(&self) -> &'static str {
        match &self.by {
            By::Pcp(made) => match made.mapping_type() {
                PortMappingType::Pcp { .. } => "PCP",
                PortMappingType::NatPmp => "NAT-PMP",
            },
            By::Upnp(_) => "UPnP",
        }
    }
}

/// The external address of a mapping by PCP or NAT-PMP.
async fn outside_by_pcp(wanted: Wanted, made: &PortMapping) -> Result<SocketAddrV4, String> {
    // The library takes a lifetime of zero for a deletion.
    if made.lifetime() == 0 {
        return Err("the router gives no lifetime".into());
    }
    let ip = match made.mapping_type() {
        PortMappingType::Pcp { external_ip, .. } => external_ip,
        PortMappingType::NatPmp => {
            let asked = natpmp::external_address(wanted.router.into(), Some(TIMES)).await;
            asked.map_err(|error| error.to_string())?.into()
        }
    };
    Ok(SocketAddrV4::new(outside(ip)?, made.external_port().get()))
}

async fn outside_by_upnp(gateway: &Gateway<Tokio>) -> Result<Ipv4Addr, String> {
    outside(gateway.get_external_ip().await.map_err(|error| error.to_string())?)
}

/// Returns the external address. The provider may have given the router a new one.
async fn renew_by_upnp(gateway: &Gateway<Tokio>, wanted: Wanted, port: u16) -> Result<Ipv4Addr, String> {
    let own = SocketAddr::new(wanted.own.into(), wanted.port.get());
    let added = gateway.add_port(PortMappingProtocol::UDP, port, own, LIFETIME, DESCRIPTION).await;
    added.map_err(|error| error.to_string())?;
    outside_by_upnp(gateway).await
}

fn outside(ip: IpAddr) -> Result<Ipv4Addr, String> {
    match ip {
        IpAddr::V4(ip) if is_outside(ip) => Ok(ip),
        _ => Err(format!("the router's address {ip} is not one outside")),
    }
}
