//! Opens the log at an address.

use crate::{
    LogError,
    address::{Engine, StoreAddress},
    etcd::EtcdLog,
    log::{Log, Page, Snapshot},
    postgres::PostgresLog,
};
use futures_util::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use tokio::sync::OnceCell;

/// The pause while a store that was never reached is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Opens the log at this address. An empty place in the store gets one.
///
/// # Errors
/// See [`LogError`].
pub async fn open(address: &StoreAddress) -> Result<Arc<dyn Log>, LogError> {
    Ok(match address.engine {
        Engine::Etcd => Arc::new(EtcdLog::open(address).await?),
        Engine::Postgres => Arc::new(PostgresLog::open(address).await?),
    })
}

/// The log at this address, which is opened when it is used: a server starts also while its store cannot be reached.
pub fn open_later(address: StoreAddress) -> Arc<dyn Log> {
    Arc::new(Later { address, log: OnceCell::new() })
}

#[derive(Debug)]
struct Later {
    address: StoreAddress,
    log: OnceCell<Arc<dyn Log>>,
}

impl Later {
    async fn log(&self) -> Result<&Arc<dyn Log>, LogError> {
        self.log.get_or_try_init(|| open(&self.address)).await
    }
}

impl Log for Later {
    fn name(&self) -> String {
        self.log.get().map_or_else(|| self.address.to_string(), |log| log.name())
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool, LogError>> {
        Box::pin(async move { self.log().await?.append(after, entry).await })
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page, LogError>> {
        Box::pin(async move { self.log().await?.read(after).await })
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>, LogError>> {
        Box::pin(async move { self.log().await?.snapshot().await })
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async move { self.log().await?.store_snapshot(snapshot).await })
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        match self.log.get() {
            Some(log) => log.wait(),
            None => Box::pin(tokio::time::sleep(PAUSE)),
        }
    }
}
