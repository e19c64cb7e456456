//! systemd-resolved of the server's host asks the server for the names of its network. Likewise, systemd-resolved of a
//! member asks the member.

use rustguard_network::Resolver;
use rustguard_quick::{
    Session,
    conf::Config,
    host::{NameService, name_service},
};
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// How often it is checked whether systemd-resolved runs by now, or accepts a setting that it had refused.
const AGAIN: Duration = Duration::from_secs(60);

/// The name settings that this host gets.
pub(super) struct HostNames {
    /// `None` in a star, and once the service has ended.
    resolver: Option<watch::Receiver<Resolver>>,
    again: Option<Instant>,
    /// Whether a refusal was reported. It is reported once.
    refused: bool,
}

impl HostNames {
    pub(super) fn new(resolver: Option<watch::Receiver<Resolver>>) -> Self {
        let mut names = Self { resolver, again: None, refused: false };
        // The resolver may answer already.
        names.resolver.as_mut().into_iter().for_each(watch::Receiver::mark_changed);
        names
    }

    /// Waits until the settings have changed, or have to be tried again. Dropping the future loses nothing.
    pub(super) async fn due(&mut self) {
        let Some(resolver) = &mut self.resolver else { return std::future::pending().await };
        let again = async {
            match self.again {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = resolver.changed() => if changed.is_err() {
                self.resolver = None;
            },
            () = again => {}
        }
    }

    /// Applies the settings. Only systemd-resolved can use a server for some domains only, so other resolvers get none.
    pub(super) async fn tell(&mut self, session: &mut Session) {
        let Some(resolver) = &mut self.resolver else { return };
        let resolver = resolver.borrow_and_update().clone();
        self.again = Some(Instant::now() + AGAIN);
        let mut config = session.config().clone();
        resolver.set(&mut config.interface);
        let interface = session.interface().to_owned();
        let told = |config: &Config| (config.interface.dns.clone(), config.interface.dns_search.clone());
        if told(&config) == told(session.config()) || name_service().await != NameService::Resolved {
            return;
        }
        match session.adopt(config).await {
            Ok(_) => self.refused = false,
            Err(_) if self.refused => {}
            Err(error) => {
                tracing::warn!("{interface}: systemd-resolved does not ask for the names of the network: {error}");
                self.refused = true;
            }
        }
    }
}
