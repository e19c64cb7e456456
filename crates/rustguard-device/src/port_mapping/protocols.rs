//! How a router is asked: PCP first, NAT-PMP where the router says that it speaks that, then UPnP.

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
    net::{IpAddr, SocketAddr, SocketAddrV4},
    time::Duration,
};

/// The lifetime that is asked for, in seconds. After a crash the router passes the port on for as long.
const LIFETIME: u32 = 3600;
/// Three requests in less than two seconds: the router is the next machine.
const TIMES: TimeoutConfig =
    TimeoutConfig { initial_timeout: Duration::from_millis(250), max_retries: 2, max_retry_timeout: None };
/// How long devices are searched by UPnP.
const SEARCH: Duration = Duration::from_secs(3);
/// What routers show to their owners.
const DESCRIPTION: &str = "RustGuard";

/// What a router has mapped.
pub(super) struct Mapping {
    pub(super) wanted: Wanted,
    /// The address outside.
    pub(super) external: SocketAddrV4,
    /// As the router says.
    pub(super) lifetime: Duration,
    by: By,
}

enum By {
    /// PCP or NAT-PMP.
    Pcp(Box<PortMapping>),
    Upnp(Box<Gateway<Tokio>>),
}

impl Mapping {
    /// Asks the router in each way until one works.
    pub(super) async fn ask(wanted: Wanted) -> Option<Self> {
        match Self::by_pcp(wanted).await {
            Ok(mapping) => return Some(mapping),
            // Debug: the text may have parts from outside.
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

    async fn by_pcp(wanted: Wanted) -> Result<Self, String> {
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
        let ip = match made.mapping_type() {
            PortMappingType::Pcp { external_ip, .. } => external_ip,
            PortMappingType::NatPmp => {
                let asked = natpmp::external_address(wanted.router.into(), Some(TIMES)).await;
                asked.map_err(|error| error.to_string())?.into()
            }
        };
        // The library takes a lifetime of zero for a deletion.
        let lifetime = made.lifetime();
        if lifetime == 0 {
            return Err("the router gives no lifetime".into());
        }
        Ok(Self {
            wanted,
            external: external(ip, made.external_port().get())?,
            lifetime: Duration::from_secs(lifetime.min(LIFETIME).into()),
            by: By::Pcp(Box::new(made)),
        })
    }

    async fn by_upnp(wanted: Wanted) -> Result<Self, String> {
        let mut options = SearchOptions::default();
        // Multicast from this address leaves by its interface, whatever the routes say (ip_route_output_key in the kernel).
        options.bind_addr = SocketAddr::new(wanted.own.into(), 0);
        options.timeout = Some(SEARCH);
        let gateway = search_gateway(options).await.map_err(|error| error.to_string())?;
        if gateway.addr.ip() != IpAddr::V4(wanted.router) {
            // Any machine in the network can answer.
            return Err(format!("{} is not this network's router", gateway.addr.ip()));
        }
        let ip = gateway.get_external_ip().await.map_err(|error| error.to_string())?;
        // Asked before the mapping, so that none is left behind where the address is of no use.
        external(ip, wanted.port.get())?;
        let own = SocketAddr::new(wanted.own.into(), wanted.port.get());
        let port = gateway.add_any_port(PortMappingProtocol::UDP, own, LIFETIME, DESCRIPTION).await;
        Ok(Self {
            wanted,
            external: external(ip, port.map_err(|error| error.to_string())?)?,
            lifetime: Duration::from_secs(LIFETIME.into()),
            by: By::Upnp(Box::new(gateway)),
        })
    }

    /// Asks for more time. Returns false where there is no mapping any more.
    pub(super) async fn renew(&mut self) -> bool {
        let renewed = match &mut self.by {
            By::Pcp(made) => {
                let mut made = made.clone();
                match made.renew().await {
                    Ok(()) => Self::from_pcp(self.wanted, *made).await,
                    Err(error) => Err(error.to_string()),
                }
            }
            By::Upnp(gateway) => {
                let own = SocketAddr::new(self.wanted.own.into(), self.wanted.port.get());
                let port = self.external.port();
                let added = gateway.add_port(PortMappingProtocol::UDP, port, own, LIFETIME, DESCRIPTION).await;
                match added {
                    Ok(()) => return true,
                    Err(error) => Err(error.to_string()),
                }
            }
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

    /// Takes the mapping back.
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

fn external(ip: IpAddr, port: u16) -> Result<SocketAddrV4, String> {
    match ip {
        IpAddr::V4(ip) if is_outside(ip) && port != 0 => Ok(SocketAddrV4::new(ip, port)),
        _ => Err(format!("the router's address {ip} is not one outside")),
    }
}
