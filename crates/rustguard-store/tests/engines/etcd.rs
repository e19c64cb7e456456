//! The log in etcd.

use crate::{
    cluster::{Cluster, open, opened},
    process::folder,
    tls::certificates,
};
use rustguard_store::{
    Log, LogError, conformance,
    log::{MAX_ENTRY, Page},
};
use std::fs;

#[tokio::test]
async fn the_log_in_etcd_conforms() {
    let Some(etcd) = Cluster::of_one(&[]) else { return };
    conformance::check(async |place: &str| etcd.open(place).await).await.unwrap();
}

/// Appends an entry, however often the answer gets lost. Returns the revision of the last entry then.
async fn append(log: &dyn Log, mut last: u64, entry: &[u8]) -> u64 {
    loop {
        match log.append(last, entry).await {
            Ok(true) => return last + 1,
            Ok(false) => {}
            Err(error) => assert!(error.is_unknown(), "{error}"),
        }
        match log.read(last).await {
            Ok(Page::Entries { entries, last: now }) => {
                last = now;
                if entries.iter().any(|found| found == entry) {
                    return last;
                }
            }
            Ok(Page::Removed) => panic!("nobody has stored a snapshot"),
            Err(error) => assert!(error.is_unknown(), "{error}"),
        }
    }
}

#[tokio::test]
async fn any_one_of_three_members_may_die() {
    let Some(mut etcd) = Cluster::of_three() else { return };
    let log = etcd.open("home").await.unwrap();
    let mut last = 0;
    for member in 0..3 {
        last = append(&log, last, format!("before {member}").as_bytes()).await;
        etcd.members[member] = None;
        last = append(&log, last, format!("without {member}").as_bytes()).await;
        etcd.spawn(member);
        etcd.listens(member);
    }
    // A member that hangs, and does not close its connections.
    etcd.members[2].as_ref().unwrap().signal(rustix::process::Signal::STOP);
    last = append(&log, last, b"beside a stopped one").await;
    etcd.members[2].as_ref().unwrap().signal(rustix::process::Signal::CONT);
    // Two of three are gone: nothing is decided, and it is said so.
    (etcd.members[0], etcd.members[1]) = (None, None);
    let error = log.append(last, b"by a minority").await.unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("does not answer"), "{error}");
    for member in [0, 1] {
        etcd.spawn(member);
    }
    last = append(&log, last, b"again").await;
    let Page::Entries { entries, .. } = log.read(0).await.unwrap() else { panic!("nobody has stored a snapshot") };
    let texts: Vec<_> =
        entries.iter().map(|entry| String::from_utf8_lossy(entry)).filter(|text| text != "by a minority").collect();
    assert_eq!(
        texts,
        ["before 0", "without 0", "before 1", "without 1", "before 2", "without 2", "beside a stopped one", "again"]
    );
    assert_eq!(last, entries.len() as u64);
}

#[tokio::test]
async fn the_prefix_of_another_program_is_left_alone() {
    let Some(etcd) = Cluster::of_one(&[]) else { return };
    let Some(_) = etcd.etcdctl("put shop/orders/1 paid") else { return };
    let error = etcd.open("shop").await.unwrap_err();
    let place = format!("{} holds other data (the key shop/orders/1), and no log of a network", etcd.address("shop"));
    assert!(error.to_string().contains(&place), "{error}");
    assert_eq!(etcd.etcdctl("get --prefix shop").unwrap(), "shop/orders/1\npaid\n");
    // A log of a program to come.
    drop(etcd.open("home").await.unwrap());
    etcd.etcdctl("put home/format 2");
    let error = etcd.open("home").await.unwrap_err();
    assert!(
        error.to_string().contains("has format 2, and this program knows format 1; use a newer program"),
        "{error}"
    );
    // A removed entry is reported.
    etcd.etcdctl("put home/format 1");
    let log = etcd.open("home").await.unwrap();
    for n in 0..3 {
        assert!(log.append(n, b"entry").await.unwrap());
    }
    etcd.etcdctl("del home/log/00000000000000000002");
    let error = log.read(0).await.unwrap_err();
    assert!(error.to_string().contains("is damaged: entry 2 is missing"), "{error}");
}

#[tokio::test]
async fn users_with_passwords_and_rights() {
    let Some(etcd) = Cluster::of_one(&[]) else { return };
    let Some(_) = etcd.etcdctl("user add root:rootsecret") else { return };
    for command in [
        "role add root",
        "user grant-role root root",
        "user add rustguard:secret",
        "role add vpn",
        "role grant-permission vpn readwrite --prefix=true home/",
        "user grant-role rustguard vpn",
        "auth enable",
    ] {
        etcd.etcdctl(command);
    }
    let file = |name: &str, text: &str| {
        let path = etcd.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (file("right", "secret\n"), file("wrong", "guess\n"));
    let address = |place: &str, rest: &str| etcd.address(place).replace("etcd://", "etcd://rustguard@") + rest;
    let log = opened(&address("home", &format!("?password-file={right}"))).await.unwrap();
    assert!(log.append(0, b"entry").await.unwrap());
    let refused = async |address: String| open(&address).await.unwrap_err().to_string();
    let error = refused(address("home", &format!("?password-file={wrong}"))).await;
    assert!(error.contains("check the user and the password") && !error.contains("guess"), "{error}");
    let error = refused(address("home", "?password-file=/nowhere")).await;
    assert!(error.contains("the file /nowhere cannot be used: No such file"), "{error}");
    let error = refused(address("home", "")).await;
    assert!(error.contains("no password for the user rustguard; write ?password-file=FILE"), "{error}");
    let error = refused(etcd.address("home")).await;
    assert!(error.contains("write the user into the address"), "{error}");
    let error = refused(address("other", &format!("?password-file={right}"))).await;
    assert!(error.contains("grant-permission ROLE readwrite --prefix=true other/"), "{error}");
}

#[tokio::test]
async fn tls_with_certificates_of_both_sides() {
    let folder = folder();
    let Some(()) = certificates(folder.path()) else { return };
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let (other, not_a_key) = (file("other.pem"), file("server.ext"));
    let arguments = [
        format!("--cert-file={}", file("server.pem")),
        format!("--key-file={}", file("server.key")),
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={ca}"),
    ];
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let Some(etcd) = Cluster::in_folder(folder, &arguments) else { return };
    let at = etcd.address("home");
    let log = opened(&format!("{at}?ca={ca}&cert={cert}&key={key}")).await.unwrap();
    assert!(log.append(0, b"entry").await.unwrap());
    let refused = async |options: &str| open(&format!("{at}?{options}")).await.unwrap_err();
    let error = refused(&format!("ca={other}&cert={cert}&key={key}")).await;
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    for options in [format!("ca={ca}"), "tls=off".to_owned()] {
        let error = refused(&options).await;
        assert!(matches!(error, LogError::Unavailable { .. }), "without the client's certificate: {error}");
    }
    let error = refused(&format!("ca={ca}&cert={cert}&key={not_a_key}")).await;
    assert!(error.to_string().contains("server.ext cannot be used"), "{error}");
    let error = refused(&format!("ca={ca}&cert={cert}&key=/nowhere")).await;
    assert!(error.to_string().contains("the file /nowhere cannot be used"), "{error}");
}

#[tokio::test]
async fn a_store_that_is_full_refuses_and_goes_on_when_there_is_room() {
    let Some(etcd) = Cluster::of_one(&["--quota-backend-bytes=16777216"]) else { return };
    let log = etcd.open("home").await.unwrap();
    let entry = vec![7; MAX_ENTRY];
    let mut last = 0;
    let error = loop {
        match log.append(last, &entry).await {
            Ok(true) => last += 1,
            Ok(false) => panic!("nobody else appends"),
            Err(error) => break error,
        }
        assert!(last < 100, "etcd has no quota");
    };
    let text = "is full: etcdserver: mvcc: database space exceeded; compact and defragment etcd or raise its quota";
    assert!(matches!(error, LogError::Full { .. }) && error.to_string().contains(text), "{error}");
    assert!(error.is_unknown(), "etcd carries out the request with which it gets full");
    let (appended, mut read) = (last, 0);
    loop {
        let Page::Entries { entries, last: now } = log.read(read).await.unwrap() else {
            panic!("nobody has stored a snapshot")
        };
        assert!(entries.iter().all(|found| *found == entry));
        (last, read) = (now, read + entries.len() as u64);
        if entries.is_empty() {
            break;
        }
    }
    assert!(read == last && (appended..=appended + 1).contains(&last), "{appended} appended, {read} of {last} read");
    let Some(_) = etcd.etcdctl("del --prefix home/log/") else { return };
    let status = etcd.etcdctl("get home/last --write-out=json").unwrap();
    let revision = status.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    etcd.etcdctl(&format!("compact {revision}"));
    etcd.etcdctl("defrag");
    etcd.etcdctl("alarm disarm");
    assert!(log.append(last, b"there is room").await.unwrap());
}

#[tokio::test]
async fn nobody_listens() {
    let [port] = crate::process::ports();
    let error = open(&format!("etcd://127.0.0.1:{port}/home")).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(error.to_string().contains("Connection refused"), "{error}");
}
