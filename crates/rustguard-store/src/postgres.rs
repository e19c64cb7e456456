//! The log in PostgreSQL.
//!
//! The tables are in a schema of their own:
//!
//! | Table | Rows |
//! |---|---|
//! | `head` | one: the format, the revision of the last entry, that of the newest snapshot |
//! | `log` | the entries, by their revisions |
//! | `snapshot` | the parts of the newest snapshot |
//!
//! An append is one statement: it moves `head` on if its revision is as expected, and inserts the entry if it has. The
//! lock of the row puts appends of all servers in a sequence. Statements have no names, so a pooler may stand between.
//! Notifications do not come through a pooler: then the log is asked twice a second.

use crate::{
    LogError,
    address::StoreAddress,
    error::{PATIENCE, with_causes},
    log::{Log, PAGE, Page, Snapshot, check_entry, check_snapshot, page},
    tls,
};
use futures_util::future::{BoxFuture, poll_fn};
use std::{fmt, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, MutexGuard, Notify},
    task::JoinHandle,
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, NoTls,
    config::{SslMode, TargetSessionAttrs},
    error::SqlState,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

const FORMAT: i32 = 1;
/// The longest time for a snapshot, which is many megabytes.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(60);
/// The advisory lock of a server that makes the tables. The number is arbitrary.
const MAKING: i64 = 7_311_061;
/// [`Log::wait`] returns after this time, also without a notification.
const POLL: Duration = Duration::from_millis(500);
/// The channel of notifications.
const CHANNEL: &str = "rustguard";

type Result<T> = std::result::Result<T, LogError>;

/// The log of one network in PostgreSQL.
pub struct PostgresLog {
    address: StoreAddress,
    config: Config,
    tls: Option<MakeRustlsConnect>,
    connected: Mutex<Option<Connected>>,
    grown: Arc<Notify>,
}

struct Connected {
    client: Client,
    /// The task that carries the messages of the connection.
    task: JoinHandle<()>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for PostgresLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresLog").field(&self.name()).finish()
    }
}

impl PostgresLog {
    /// Opens the log at an address, and makes its schema and tables if they do not exist. Call it on a tokio runtime.
    ///
    /// # Errors
    /// See [`LogError`].
    pub async fn open(address: &StoreAddress) -> Result<Self> {
        let mut config = Config::new();
        for (host, port) in &address.hosts {
            config.host(host).port(*port);
        }
        config.dbname(&address.place).application_name("rustguard").connect_timeout(PATIENCE);
        // Of several hosts, the one that may be written is taken: the others are replicas.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.keepalives_idle(Duration::from_secs(10)).tcp_user_timeout(Duration::from_secs(10));
        config.ssl_mode(if address.tls { SslMode::Require } else { SslMode::Disable });
        if let Some(user) = &address.user {
            config.user(user);
        }
        if let Some(password) = tls::password(address)? {
            config.password(password.as_bytes());
        }
        let tls = if address.tls { Some(MakeRustlsConnect::new(client_config(address)?)) } else { None };
        let log = Self { address: address.clone(), config, tls, connected: Mutex::new(None), grown: Arc::default() };
        log.set_up().await?;
        Ok(log)
    }

    /// Carries out a request on the connection, which is made if there is none. After a failure that may be the
    /// connection's, the next request gets another one.
    async fn request<T>(&self, run: impl AsyncFnOnce(&mut Client) -> std::result::Result<T, Error>) -> Result<T> {
        self.request_within(PATIENCE, run).await
    }

    async fn request_within<T>(
        &self,
        patience: Duration,
        run: impl AsyncFnOnce(&mut Client) -> std::result::Result<T, Error>,
    ) -> Result<T> {
        let request = async {
            let mut connected = self.connected().await?;
            let client = &mut connected.as_mut().expect("it is connected").client;
            run(client).await
        };
        let error = match timeout(patience, request).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => self.error(&error),
            Err(_) => LogError::late(&self.name(), patience),
        };
        if error.is_unknown() {
            *self.connected.lock().await = None;
        }
        Err(error)
    }

    async fn connected(&self) -> std::result::Result<MutexGuard<'_, Option<Connected>>, Error> {
        let mut connected = self.connected.lock().await;
        if connected.as_ref().is_none_or(|connected| connected.client.is_closed()) {
            *connected = None;
            let (client, task) = match &self.tls {
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls.clone()).await?;
                    (client, tokio::spawn(carry(connection, Arc::clone(&self.grown))))
                }
                None => {
                    let (client, connection) = self.config.connect(NoTls).await?;
                    (client, tokio::spawn(carry(connection, Arc::clone(&self.grown))))
                }
            };
            let new = connected.insert(Connected { client, task });
            new.client.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
        }
        Ok(connected)
    }

    fn error(&self, error: &Error) -> LogError {
        let store = &self.name();
        let Some(answer) = error.as_db_error() else {
            let cause = with_causes(error);
            // `target_session_attrs` found only hosts that may not be written.
            if cause.contains("does not allow writes") {
                return read_only(store, &cause);
            }
            return LogError::unavailable(store, cause);
        };
        let (code, cause) = (answer.code(), answer.message());
        let (user, place, schema) =
            (self.address.user.as_deref().unwrap_or("USER"), &self.address.place, &self.address.schema);
        let remedy = match *code {
            SqlState::READ_ONLY_SQL_TRANSACTION => return read_only(store, cause),
            SqlState::INSUFFICIENT_PRIVILEGE => {
                format!(
                    "let an administrator run: CREATE SCHEMA \"{schema}\" AUTHORIZATION \"{user}\"; or, if it exists, \
                     GRANT ALL ON SCHEMA \"{schema}\" TO \"{user}\"; GRANT ALL ON ALL TABLES IN SCHEMA \"{schema}\" TO \"{user}\""
                )
            }
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                format!(
                    "check the user, and the password in ?password-file=FILE or {}",
                    crate::address::PASSWORD_VARIABLE
                )
            }
            SqlState::INVALID_CATALOG_NAME => format!("make the database: createdb {place}"),
            SqlState::DISK_FULL => "make room on the disk of PostgreSQL".to_owned(),
            SqlState::TOO_MANY_CONNECTIONS => "raise max_connections, or end other connections".to_owned(),
            // Another server of the same database was in the way, or the server is stopping or starting.
            SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW => return LogError::unavailable(store, cause),
            _ if code.code().starts_with("08") => return LogError::unavailable(store, cause),
            _ => String::new(),
        };
        LogError::refused(store, cause, remedy)
    }

    /// A table's name with its schema.
    fn table(&self, name: &str) -> String {
        // An address has only letters, digits and `-_.` in a schema.
        format!("\"{}\".\"{name}\"", self.address.schema)
    }

    async fn set_up(&self) -> Result<()> {
        let (schema, head, log, snapshot) =
            (&self.address.schema, self.table("head"), self.table("log"), self.table("snapshot"));
        // The tables of an existing schema.
        let find = "SELECT relname::text FROM pg_namespace AS schema LEFT JOIN pg_class ON relnamespace = schema.oid \
             AND relkind IN ('r', 'p', 'v', 'm', 'f') WHERE nspname = $1";
        let found = self.request(async |client| client.query_typed(find, &[(schema, Type::TEXT)]).await).await?;
        // The user of an existing schema needs no right to make schemas.
        let make_schema =
            if found.is_empty() { format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";") } else { String::new() };
        let found: Vec<String> = found.iter().filter_map(|row| row.get(0)).collect();
        if !["head", "log", "snapshot"].iter().all(|table| found.iter().any(|found| found == table)) {
            if let Some(other) = found.first() {
                return Err(LogError::Foreign { store: self.name(), example: format!("the table {schema}.{other}") });
            }
            // Two servers may do this at the same time: the lock lets the second one find what the first one made.
            let make = format!(
                "BEGIN; SELECT pg_advisory_xact_lock({MAKING}); {make_schema} \
                 CREATE TABLE IF NOT EXISTS {head} (one boolean PRIMARY KEY DEFAULT true CHECK (one), \
                     format integer NOT NULL, revision bigint NOT NULL, snapshot bigint NOT NULL); \
                 CREATE TABLE IF NOT EXISTS {log} (revision bigint PRIMARY KEY, entry bytea NOT NULL); \
                 CREATE TABLE IF NOT EXISTS {snapshot} (part integer PRIMARY KEY, data bytea NOT NULL); \
                 INSERT INTO {head} (format, revision, snapshot) VALUES ({FORMAT}, 0, 0) ON CONFLICT DO NOTHING; COMMIT"
            );
            let made = self.request(async |client| client.batch_execute(&make).await).await;
            if let Err(error) = made {
                // The transaction that failed is open.
                *self.connected.lock().await = None;
                return Err(error);
            }
        }
        let find = format!("SELECT format FROM {head}");
        let format: Option<i32> =
            self.request(async |client| client.query_typed(&find, &[]).await).await?.first().map(|row| row.get(0));
        match format {
            Some(FORMAT) => {}
            Some(found) => {
                let (found, known) = (found.to_string(), FORMAT as u32);
                return Err(LogError::Version { store: self.name(), found, known });
            }
            None => return Err(self.damaged("the table `head` has no row")),
        }
        // An acknowledged record must be durable.
        let user = self.address.user.as_deref().unwrap_or("USER");
        let for_role = format!("ALTER ROLE \"{user}\" SET synchronous_commit = on");
        for (setting, remedy) in [("synchronous_commit", &*for_role), ("fsync", "set fsync = on in postgresql.conf")] {
            let show = format!("SELECT current_setting('{setting}')");
            let rows = self.request(async |client| client.query_typed(&show, &[]).await).await?;
            if rows.first().is_some_and(|row| row.get::<_, String>(0) == "off") {
                let cause = format!("it acknowledges what a power cut can undo ({setting} = off)");
                return Err(LogError::refused(&self.name(), cause, remedy));
            }
        }
        Ok(())
    }

    async fn append(&self, after: u64, entry: &[u8]) -> Result<bool> {
        check_entry(entry)?;
        let Ok(after) = i64::try_from(after) else { return Ok(false) };
        let (head, log) = (self.table("head"), self.table("log"));
        let append = format!(
            "WITH moved AS (UPDATE {head} SET revision = revision + 1 WHERE revision = $1 RETURNING revision), \
             added AS (INSERT INTO {log} SELECT revision, $2 FROM moved RETURNING revision) \
             SELECT revision, pg_notify($3, revision::text) FROM added"
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&after, Type::INT8), (&entry, Type::BYTEA), (&CHANNEL, Type::TEXT)];
        let rows = self.request(async |client| client.query_typed(&append, &parameters).await).await?;
        Ok(!rows.is_empty())
    }

    async fn read(&self, after: u64) -> Result<Page> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let (head, log) = (self.table("head"), self.table("log"));
        // One statement sees one state. The sum ends a page where its entries get too long.
        let read = format!(
            "SELECT head.revision, entries.revision, entries.entry FROM {head} AS head LEFT JOIN LATERAL ( \
                 SELECT revision, entry FROM ( \
                     SELECT revision, entry, sum(length(entry)) OVER (ORDER BY revision) AS len \
                     FROM (SELECT revision, entry FROM {log} WHERE revision > $1 ORDER BY revision LIMIT 4096) AS next \
                 ) AS summed WHERE len <= $2 OR revision = (SELECT min(revision) FROM {log} WHERE revision > $1) \
             ) AS entries ON true ORDER BY entries.revision"
        );
        let limit = PAGE as i64;
        let rows = self
            .request(async |client| client.query_typed(&read, &[(&after, Type::INT8), (&limit, Type::INT8)]).await)
            .await?;
        let Some(first) = rows.first() else { return Err(self.damaged("the table `head` has no row")) };
        let last: i64 = first.get(0);
        if last <= after {
            return Ok(Page::Entries { entries: Vec::new(), last: u64::try_from(last).unwrap_or_default() });
        }
        let mut entries = Vec::with_capacity(rows.len());
        for (row, revision) in rows.iter().zip(after + 1..) {
            if row.get::<_, Option<i64>>(1) != Some(revision) {
                if entries.is_empty() {
                    return Ok(Page::Removed);
                }
                return Err(self.damaged(&format!("entry {revision} is missing")));
            }
            entries.push(row.get::<_, Vec<u8>>(2));
        }
        Ok(Page::Entries { entries: page(entries.into_iter()), last: last as u64 })
    }

    async fn snapshot(&self) -> Result<Option<Snapshot>> {
        let (head, snapshot) = (self.table("head"), self.table("snapshot"));
        let read =
            format!("SELECT head.snapshot, parts.data FROM {head} AS head, {snapshot} AS parts ORDER BY parts.part");
        let rows = self.request(async |client| client.query_typed(&read, &[]).await).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let revision: i64 = first.get(0);
        let parts = rows.iter().map(|row| row.get(1)).collect();
        Ok(Some(Snapshot { revision: u64::try_from(revision).unwrap_or_default(), parts }))
    }

    async fn store_snapshot(&self, stored: &Snapshot) -> Result<()> {
        check_snapshot(stored)?;
        let Ok(revision) = i64::try_from(stored.revision) else { return Ok(()) };
        let (head, log, snapshot) = (self.table("head"), self.table("log"), self.table("snapshot"));
        let store = async |client: &mut Client| {
            // A transaction that is dropped is rolled back.
            let transaction = client.transaction().await?;
            let before = format!("SELECT snapshot FROM {head} FOR UPDATE");
            let before: i64 = transaction.query_typed(&before, &[]).await?.first().map_or(i64::MAX, |row| row.get(0));
            if before >= revision {
                return Ok(());
            }
            transaction.batch_execute(&format!("DELETE FROM {snapshot}")).await?;
            let insert = format!("INSERT INTO {snapshot} VALUES ($1, $2)");
            for (part, number) in stored.parts.iter().zip(0_i32..) {
                transaction.query_typed(&insert, &[(&number, Type::INT4), (part, Type::BYTEA)]).await?;
            }
            let remove = format!("DELETE FROM {log} WHERE revision <= $1");
            transaction.query_typed(&remove, &[(&before, Type::INT8)]).await?;
            let replace = format!("UPDATE {head} SET snapshot = $1");
            transaction.query_typed(&replace, &[(&revision, Type::INT8)]).await?;
            transaction.commit().await
        };
        self.request_within(SNAPSHOT_PATIENCE, store).await
    }

    fn damaged(&self, cause: &str) -> LogError {
        LogError::Damaged { store: self.name(), cause: cause.to_owned() }
    }
}

impl Log for PostgresLog {
    fn name(&self) -> String {
        self.address.to_string()
    }

    fn append<'a>(&'a self, after: u64, entry: &'a [u8]) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.append(after, entry))
    }

    fn read(&self, after: u64) -> BoxFuture<'_, Result<Page>> {
        Box::pin(self.read(after))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Option<Snapshot>>> {
        Box::pin(self.snapshot())
    }

    fn store_snapshot<'a>(&'a self, snapshot: &'a Snapshot) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.store_snapshot(snapshot))
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // A notification that comes before this call is kept for it.
            let _ = timeout(POLL, self.grown.notified()).await;
        })
    }
}

/// Carries the messages of a connection until it ends, and tells of notifications.
async fn carry<S, T>(mut connection: tokio_postgres::Connection<S, T>, grown: Arc<Notify>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(_) = message {
            grown.notify_one();
        }
    }
    // Entries that come before the next connection are found by reading.
    grown.notify_one();
}

fn read_only(store: &str, cause: &str) -> LogError {
    LogError::refused(store, cause, "it is a replica: give the address of the primary, or of all hosts")
}

fn client_config(address: &StoreAddress) -> Result<ClientConfig> {
    let refused = |error: &dyn std::error::Error| {
        LogError::refused(&address.to_string(), with_causes(error), "check the files `ca`, `cert` and `key`")
    };
    let mut roots = RootCertStore::empty();
    let authorities = match tls::authorities(address)? {
        Some(pem) => CertificateDer::pem_slice_iter(&pem).flatten().collect(),
        None => rustls_native_certs::load_native_certs().certs,
    };
    // Some authorities of a system may be unusable.
    roots.add_parsable_certificates(authorities);
    if roots.is_empty() {
        let remedy = "install ca-certificates, or give the file with the store's authority: ?ca=FILE";
        let cause = "this system has no certificates of authorities";
        return Err(LogError::refused(&address.to_string(), cause, remedy));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has TLS 1.2 and 1.3")
        .with_root_certificates(roots);
    let Some((certificate, key)) = tls::identity(address)? else { return Ok(builder.with_no_client_auth()) };
    let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| refused(&error))?;
    let chain = chain.map_err(|error| refused(&error))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| refused(&error))
}
