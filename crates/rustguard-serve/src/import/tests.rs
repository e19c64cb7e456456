use super::*;
use crate::Prepared;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

/// The files of servers as the tools write them.
fn fixture(name: &str, file: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(name).join(file);
    assert!(path.exists(), "{}", path.display());
    path
}

fn import(name: &str) -> Import {
    Import::read(&[fixture(name, "wg0.conf")], &ImportOptions::default())
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Names, addresses and prefixes, as in a list.
fn peers(import: &Import) -> Vec<String> {
    let peer = |peer: ImportedPeer| {
        let nets = peer.addresses.iter().map(ToString::to_string).chain(peer.prefixes.iter().map(ToString::to_string));
        format!("{} {}", peer.name.unwrap_or_else(|| "-".to_owned()), nets.collect::<Vec<_>>().join(" "))
    };
    import.peers().map(peer).collect()
}

/// Each tool's file: peers with names, the settings, and the notes on the rest.
#[test]
fn servers_as_the_tools_write_them() {
    for (name, expected, pools, told) in [
        (
            "wireguard-install",
            &["laptop 10.66.66.2 fd42:42:42::2", "phone 10.66.66.3 fd42:42:42::3"][..],
            "10.66.66.1/24 fd42:42:42::1/64",
            &["--dport 61234", "clients reach 0.0.0.0/0, ::/0"][..],
        ),
        ("nyr", &["desk 10.7.0.2", "tablet 10.7.0.3"], "10.7.0.1/24", &[]),
        (
            "pivpn",
            &["pi 10.6.0.2 fd11:5ee:bad:c0de::a06:2", "anna.home 10.6.0.4 fd11:5ee:bad:c0de::a06:4"],
            "10.6.0.1/24 fd11:5ee:bad:c0de::a06:1/64",
            &["old is disabled", "MTU = 1420"],
        ),
        (
            "algo",
            &["phone 10.49.0.2 2001:db8:a160::2", "laptop 10.49.0.3 2001:db8:a160::3"],
            "10.49.0.1/16 2001:db8:a160::1/48",
            &[],
        ),
        ("streisand", &["- 10.192.122.2"], "10.192.122.1/24", &["SaveConfig"]),
        (
            "linuxserver",
            &["peer1 10.13.13.2", "peer_phone 10.13.13.3 192.168.77.0/24", "peer3 10.13.13.4"],
            "10.13.13.1/24",
            &["has no prefix length", "clients reach 0.0.0.0/0"],
        ),
        (
            "unraid",
            &["MyPhone 10.253.0.2 fc00:253::2", "Work-Laptop 10.253.0.3 fc00:253::3"],
            "10.253.0.1/24 fc00:253::1/64",
            &["logger -t wireguard", "`Work Laptop` is called", "has no prefix length"],
        ),
        (
            "handmade",
            &["Bob 10.44.5.2", "Carol-s 10.44.5.3"],
            "10.44.5.254/24",
            &[
                "Table = off",
                "FwMark = 0x51",
                "DNS = 10.44.5.254, lan",
                "ip route add",
                "notify up",
                "clients reach 192.168.50.0/24",
                "cannot reach each other",
            ],
        ),
        ("ipv6-only", &["six fd6c:1::6", "seven fd6c:1::7"], "fd6c:1::1/64", &[]),
        (
            "site-to-site",
            &["office 172.31.255.2 10.77.0.0/16 192.168.10.0/24 192.168.20.0/23", "cabin 192.168.30.0/24"],
            "172.31.255.1/29",
            &["cabin has no address"],
        ),
        ("windows", &["one 10.91.0.2", "two 10.91.0.3"], "10.91.0.1/24", &[]),
        ("wireguard-ui", &["Joris 10.252.1.1"], "10.252.1.0/23", &["first or last of its network", "MTU = 1450"]),
        (
            "wg-easy",
            &["Living-room-TV 10.8.0.2"],
            "10.8.0.1/24",
            &["clients reach 0.0.0.0/0", "`Living room TV` is called"],
        ),
    ] {
        let import = import(name);
        assert_eq!(peers(&import), expected, "{name}");
        let own: Vec<_> = import.settings().pools.iter().map(ToString::to_string).collect();
        assert_eq!(own.join(" "), pools, "{name}");
        let notes = import.notes().join("\n");
        for words in told {
            assert!(notes.contains(words), "{name}: {words}: {notes}");
        }
        if told.is_empty() {
            assert_eq!(notes, "", "{name}");
        }
    }
    assert_eq!(import("nyr").settings().endpoint.as_deref(), Some("vpn.lab"));
    assert_eq!(import("site-to-site").settings().network.mtu, Some(1280));
    assert!(import("handmade").settings().isolate && !import("nyr").settings().nat);
}

#[test]
fn the_file_of_wg_easy_is_the_server_of_its_configuration() {
    let options = ImportOptions::default();
    let json = Import::read(&[fixture("wg-easy", "wg0.json")], &options).unwrap();
    assert_eq!(peers(&json), peers(&import("wg-easy")));
    assert_eq!(json.settings(), import("wg-easy").settings());
    let notes = json.notes().join("\n");
    assert!(notes.contains("Old phone is disabled") && notes.contains("does not have the port"), "{notes}");
    let both = Import::read(&[fixture("wg-easy", "wg0.conf"), fixture("wg-easy", "wg0.json")], &options).unwrap();
    assert_eq!(both.settings(), json.settings());
    assert!(!both.notes().join("\n").contains("does not have the port"), "{:?}", both.notes());
}

/// Clients that wg-easy has disabled or would disable are not admitted, even if an older file beside it still has them.
/// A client that expires later is admitted, and its expiry does not make the import differ.
#[test]
fn clients_of_wg_easy_end_when_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(fixture("wg-easy", "wg0.json")).unwrap();
    let enabled = "\"enabled\": true";
    let of = |expires: &str| {
        let path = dir.path().join("wg0.json");
        fs::write(&path, text.replace(enabled, &format!("{enabled}, \"expiredAt\": {expires}"))).unwrap();
        path
    };
    let read = |files: &[PathBuf]| Import::read(files, &ImportOptions::default()).unwrap();
    let conf = fixture("wg-easy", "wg0.conf");

    let stays = read(&[of("null")]);
    assert_eq!(peers(&stays), ["Living-room-TV 10.8.0.2"]);
    let later = read(&[of("\"2999-12-31T22:59:59.000Z\"")]);
    assert_eq!(peers(&later), peers(&stays));
    let notes = later.notes().join("\n");
    assert!(notes.contains("expires on 2999-12-31T22:59:59Z") && notes.contains("peer rm Living-room-TV"), "{notes}");
    for files in [vec![of("\"2023-12-31T22:59:59.000Z\"")], vec![conf.clone(), of("\"2023-12-31T22:59:59.000Z\"")]] {
        let ended = read(&files);
        assert!(peers(&ended).is_empty(), "{:?}", peers(&ended));
        let notes = ended.notes().join("\n");
        assert!(notes.contains("Living room TV has expired on 2023-12-31T22:59:59Z, and is left out"), "{notes}");
        assert!(!notes.contains("is called"), "{notes}");
    }
    let folders = tempfile::tempdir().unwrap();
    assert_eq!(later.store_in(folders.path(), "rg0").unwrap(), Stored::New);
    let ended = read(&[of("\"2023-12-31T22:59:59.000Z\"")]);
    assert_eq!(ended.store_in(folders.path(), "rg0").unwrap(), Stored::Before);

    // The file of wg-quick is older than the last change in the web page.
    fs::write(dir.path().join("wg0.json"), text.replace(enabled, "\"enabled\": false")).unwrap();
    for files in [vec![dir.path().join("wg0.json")], vec![conf, dir.path().join("wg0.json")]] {
        assert!(peers(&read(&files)).is_empty(), "a disabled client is let in");
    }
}

#[test]
fn the_folder_is_made_whole_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let site = import("site-to-site");
    assert_eq!(site.store_in(dir.path(), "rg0").unwrap(), Stored::New);
    let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
    assert_eq!(folder.private_key().unwrap().public_key(), site.public_key());
    for entry in fs::read_dir(folder.as_path()).unwrap() {
        let metadata = entry.unwrap().metadata().unwrap();
        assert_eq!(metadata.mode() & 0o077, 0, "readable by others");
    }
    let settings = Settings::load(&folder).unwrap().unwrap();
    assert_eq!(&settings, site.settings());
    Prepared::new("rg0", &folder, settings, None).unwrap();
    let calls = Record::load(&folder).unwrap().unwrap().calls;
    let office = calls.values().next().unwrap();
    assert_eq!((office.endpoint.as_deref(), office.keepalive), (Some("10.1.0.2:51830"), Some(25)));
    let audit = fs::read_to_string(folder.path("audit.jsonl")).unwrap();
    assert!(
        audit.lines().count() == 2 && audit.contains("\"event\":\"peer-added\"") && audit.contains("office"),
        "{audit}"
    );

    // Importing the same server again changes nothing, and another server is refused.
    fs::write(folder.path("endpoints.json"), "{}").unwrap();
    assert_eq!(site.store_in(dir.path(), "rg0").unwrap(), Stored::Before);
    assert_eq!(fs::read_to_string(folder.path("endpoints.json")).unwrap(), "{}");
    let error = import("nyr").store_in(dir.path(), "rg0").unwrap_err().to_string();
    assert!(error.contains("was imported before") && error.contains("rustguard peer"), "{error}");
    fs::remove_file(folder.path(imported::FILE)).unwrap();
    let error = site.store_in(dir.path(), "rg0").unwrap_err().to_string();
    assert!(error.contains("the state of another server or of a member"), "{error}");
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["rg0"], "nothing else stays");
}

/// A killed import does not block the next one, and an empty folder does not count as a state.
#[test]
fn an_import_that_was_killed_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let half = dir.path().join(".rg0.import");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("key"), "half").unwrap();
    let own = dir.path().join("rg0");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(import("algo").store_in(dir.path(), "rg0").unwrap(), Stored::New);
    assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
    assert!(!half.exists());
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let read =
        |path: &Path| Import::read(&[path.to_owned()], &ImportOptions::default()).map(drop).unwrap_err().to_string();
    assert!(read(dir.path()).contains("it is no file"));
    assert!(read(Path::new("/dev/zero")).contains("it is no file"));
    assert!(read(&dir.path().join("none.conf")).contains("none.conf"));
    // Nobody ever writes to the pipe. If reading waited for a writer, this test would not end.
    let pipe = dir.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(read(&pipe).contains("it is no file"));
    // A sparse file. Reading it would take 64 MiB.
    let huge = dir.path().join("huge.conf");
    File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    assert!(read(&huge).contains("larger than 64 MiB"));
    let path = dir.path().join("open.conf");
    fs::copy(fixture("algo", "wg0.conf"), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(read(&path).contains("chmod 600"));
    assert!(read(&fixture("algo", "client.conf")).contains("the configuration of a client"));
    assert!(Import::read(&[], &ImportOptions::default()).is_err());
}
