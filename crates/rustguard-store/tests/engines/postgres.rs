//! The log in PostgreSQL.

use crate::{
    database::{Database, open, plain},
    process::{Process, folder, ports, program},
    tls::certificates,
};
use rustguard_store::{Log, conformance, log::Page};
use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
};

#[tokio::test]
async fn the_log_in_postgresql_conforms() {
    let Some(database) = plain("") else { return };
    conformance::check(async |name: &str| open(&database.address(&format!("?schema={name}"))).await).await.unwrap();
}

#[tokio::test]
async fn a_log_survives_a_crash_of_the_database_and_goes_on_by_itself() {
    let Some(mut database) = plain("") else { return };
    let log = open(&database.address("")).await.unwrap();
    let mut last = 0;
    for n in 0..3_u64 {
        assert!(log.append(last, format!("entry {n}").as_bytes()).await.unwrap());
        last += 1;
        // The processes end at once, and the next start goes through the journal, as after a failure of the power.
        database.stop(rustix::process::Signal::QUIT);
        let error = log.append(last, b"nobody is there").await.unwrap_err();
        assert!(error.is_unknown() && error.to_string().contains("does not answer"), "{error}");
        database.spawn();
        database.listens();
        let Page::Entries { entries, .. } = log.read(0).await.unwrap() else { panic!("nobody has stored a snapshot") };
        assert_eq!(entries.len() as u64, last);
    }
    // The end of a connection is noticed, and another one made.
    database.cut_connections();
    let mut done = log.append(last, b"after a cut").await;
    while matches!(&done, Err(error) if error.is_unknown()) {
        done = log.append(last, b"after a cut").await;
    }
    let Page::Entries { entries, .. } = log.read(last).await.unwrap() else { panic!("nobody has stored a snapshot") };
    assert_eq!(entries, [b"after a cut"], "{done:?}");
}

#[tokio::test]
async fn a_schema_of_somebody_else_is_left_alone() {
    let Some(database) = plain("") else { return };
    database.sql("vpn", "CREATE SCHEMA shop; CREATE TABLE shop.orders (id int)");
    let error = open(&database.address("?schema=shop")).await.unwrap_err();
    assert!(error.to_string().contains("holds other data (the table shop.orders), and no log"), "{error}");
    drop(open(&database.address("?schema=home")).await.unwrap());
    database.sql("vpn", "UPDATE home.head SET format = 2");
    let error = open(&database.address("?schema=home")).await.unwrap_err();
    assert!(error.to_string().contains("has format 2, and this program knows format 1"), "{error}");
    database.sql("vpn", "UPDATE home.head SET format = 1");
    let log = open(&database.address("?schema=home")).await.unwrap();
    for n in 0..3 {
        assert!(log.append(n, b"entry").await.unwrap());
    }
    database.sql("vpn", "DELETE FROM home.log WHERE revision = 2");
    let error = log.read(0).await.unwrap_err();
    assert!(error.to_string().contains("is damaged: entry 2 is missing"), "{error}");
    database.sql("vpn", "DELETE FROM home.head");
    let error = open(&database.address("?schema=home")).await.unwrap_err();
    assert!(error.to_string().contains("the table `head` has no row"), "{error}");
    // A schema's name is a name, whatever it looks like.
    let log = open(&database.address("?schema=a-b.c_D")).await.unwrap();
    assert!(log.append(0, b"entry").await.unwrap());
}

#[tokio::test]
async fn what_the_database_does_not_let_one_do_is_said_with_the_remedy() {
    let access = "local all admin trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    let Some(database) = Database::start(folder(), "", access) else { return };
    database.sql("vpn", "CREATE ROLE rustguard LOGIN PASSWORD 'secret'; CREATE ROLE reader LOGIN PASSWORD 'secret'");
    let file = |name: &str, text: &str| {
        let path = database.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (file("right", "secret\n"), file("wrong", "guess\n"));
    let address =
        |user: &str, file: &str| format!("postgres://{user}@127.0.0.1:{}/vpn?password-file={file}", database.port);
    let refused = async |address: String| open(&address).await.unwrap_err().to_string();
    let error = refused(address("rustguard", &wrong)).await;
    assert!(error.contains("check the user, and the password in") && !error.contains("guess"), "{error}");
    let error = refused(address("rustguard", &right).replace("/vpn?", "/nowhere?")).await;
    assert!(error.contains("make the database: createdb nowhere"), "{error}");
    let error = refused(address("rustguard", &right)).await;
    let remedy = "CREATE SCHEMA \"rustguard\" AUTHORIZATION \"rustguard\"";
    assert!(
        error.contains("permission denied for database vpn; let an administrator run: ") && error.contains(remedy),
        "{error}"
    );
    // The remedy is one.
    database.sql("vpn", remedy);
    let log = open(&address("rustguard", &right)).await.unwrap();
    assert!(log.append(0, b"entry").await.unwrap());
    let error = refused(address("reader", &right)).await;
    assert!(error.contains("permission denied for schema rustguard"), "{error}");
    let (_, grants) = error.split_once("or, if it exists, ").unwrap();
    database.sql("vpn", grants);
    assert!(open(&address("reader", &right)).await.unwrap().append(1, b"by another user").await.unwrap());
    // A replica, or a database that was made one.
    database.sql("vpn", "ALTER DATABASE vpn SET default_transaction_read_only = on");
    let error = refused(address("rustguard", &right)).await;
    assert!(error.contains("it is a replica: give the address of the primary"), "{error}");
    database.sql("postgres", "ALTER DATABASE vpn RESET default_transaction_read_only");
    database.sql("vpn", "ALTER ROLE rustguard SET synchronous_commit = off");
    let error = refused(address("rustguard", &right)).await;
    assert!(error.contains("what a power cut can undo (synchronous_commit = off); ALTER ROLE"), "{error}");
}

#[tokio::test]
async fn a_pooler_may_stand_between() {
    let Some(database) = plain("") else { return };
    let Some(pgbouncer) = program("pgbouncer", "pgbouncer") else { return };
    let [port] = ports();
    let (folder, config) = (database.folder.path(), database.folder.path().join("pgbouncer.ini"));
    // Each statement may get another connection.
    let text = format!(
        "[databases]\nvpn = host=127.0.0.1 port={} user=admin\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         auth_type = any\npool_mode = transaction\nunix_socket_dir =\n",
        database.port
    );
    fs::write(&config, text).unwrap();
    let mut pooler = Process::start(&pgbouncer, folder, "pgbouncer", [&config]);
    pooler.until(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    conformance::check(async |name: &str| open(&format!("postgres://admin@127.0.0.1:{port}/vpn?schema={name}")).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn tls_with_certificates_of_both_sides() {
    let folder = folder();
    let Some(()) = certificates(folder.path()) else { return };
    let file = |name: &str| folder.path().join(name).display().to_string();
    // PostgreSQL wants the key to be its own.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(folder.path().join("server.key"), mode).unwrap();
    let settings = format!(
        "ssl = on\nssl_cert_file = '{}'\nssl_key_file = '{}'\nssl_ca_file = '{}'",
        file("server.pem"),
        file("server.key"),
        file("ca.pem")
    );
    let (ca, cert, key, other) = (file("ca.pem"), file("client.pem"), file("client.key"), file("other.pem"));
    let access = "local all admin trust\nhostssl all rustguard 127.0.0.1/32 cert\n";
    let Some(database) = Database::start(folder, &settings, access) else { return };
    database.sql("vpn", "CREATE ROLE rustguard LOGIN; CREATE SCHEMA rustguard AUTHORIZATION rustguard");
    let at = format!("postgres://rustguard@127.0.0.1:{}/vpn", database.port);
    let log = open(&format!("{at}?ca={ca}&cert={cert}&key={key}")).await.unwrap();
    assert!(log.append(0, b"entry").await.unwrap());
    let refused = async |options: &str| open(&format!("{at}?{options}")).await.unwrap_err().to_string();
    let error = refused(&format!("ca={other}&cert={cert}&key={key}")).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    let error = refused(&format!("ca={ca}")).await;
    assert!(error.contains("connection requires a valid client certificate"), "{error}");
    let error = refused("tls=off").await;
    assert!(error.contains("no pg_hba.conf entry"), "{error}");
    let error = refused(&format!("ca={key}")).await;
    assert!(error.contains("it has no certificate"), "{error}");
    let error = refused(&format!("ca={ca}&cert={cert}&key={other}")).await;
    assert!(error.contains("other.pem cannot be used"), "{error}");
}
