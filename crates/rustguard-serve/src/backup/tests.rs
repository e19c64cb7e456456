mod take_over;

use super::*;
use crate::{NetworkSettings, Prepared};
use rustguard_core::time::{Instant, Now};
use rustguard_enroll::{
    lease::{InviteRecord, Lease, LeaseState, OldKey, Origin, PresharedKey, Terms, TokenId},
    store::{Released, Tombstone},
};
use rustguard_network::roster::{label::Label, member::Member, pair::PairSecret, settings::Settings as RosterSettings};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
        net::UnixListener,
    },
    path::Path,
    time::Duration,
};

const DAY: u64 = 24 * 3600;

fn at(seconds: u64) -> Now {
    Now { instant: Instant::from_nanos(1), unix: Duration::from_secs(seconds) }
}

fn lease(byte: u8, name: &str) -> Lease {
    let psk = PresharedKey::from_bytes(&[byte; 32]);
    let v4 = Some([10, 83, 41, byte].into());
    Lease {
        name: Some(name.to_owned()),
        v4,
        created: byte.into(),
        member: true,
        ..Lease::new(PublicKey([byte; 32]), psk)
    }
}

fn invite(byte: u8, uses_left: u32) -> InviteRecord {
    InviteRecord {
        id: TokenId([byte; 8]),
        public_key: PublicKey([byte; 32]),
        serial: byte.into(),
        created: 5,
        expires: None,
        uses: 1,
        uses_left,
        last_used: None,
        revoked: None,
        terms: Terms::default(),
    }
}

fn state(leases: &[Lease], invites: &[InviteRecord]) -> State {
    State {
        time: 100,
        serial: 7,
        leases: leases.iter().map(|lease| (lease.public_key, lease.clone())).collect(),
        invites: invites.iter().map(|invite| (invite.id, invite.clone())).collect(),
        ..State::default()
    }
}

/// A server that was prepared once, with these machines.
fn server(folders: &Path, leases: &[Lease], invites: &[InviteRecord]) -> Folder {
    let folder = Folder::open_at(&folders.join("rg0")).unwrap();
    let settings = Settings { pools: vec!["10.83.41.0/24".parse().unwrap()], ..Settings::default() };
    settings.store(&folder).unwrap();
    let mut store = FileStore::open(&folder.path(LEASES)).unwrap();
    store.load().unwrap();
    store.commit(&crate::store::changes(&state(leases, invites)), &State::default()).unwrap();
    drop(store);
    Prepared::new("rg0", &folder, settings, None).unwrap();
    folder
}

/// Stores a roster of the server's network with this number.
fn issue(folder: &Folder, number: u64) {
    let backup = Backup::of_folder("rg0", folder).unwrap();
    let secret = NetworkSecret::from_bytes(&backup.secret(NETWORK_KEY).unwrap().unwrap());
    let pairs = PairSecret::from_bytes(&backup.secret(PAIRS).unwrap().unwrap());
    let mut settings = RosterSettings::new(Label::clean("rg0").unwrap());
    settings.pair_secret = Some(pairs.id());
    let members = vec![Member::new(backup.public_key().unwrap(), Label::clean("server").unwrap()).into()];
    let roster = Roster::issue(&secret, number, 50, settings, members).unwrap();
    folder.replace(ROSTER, &roster.to_bytes()).unwrap();
}

fn backup(folder: &Folder) -> Backup {
    Backup::of_folder("rg0", folder).unwrap()
}

fn names(state: &State) -> Vec<&str> {
    let mut names: Vec<_> = state.leases.values().filter_map(|lease| lease.name.as_deref()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_backup_is_the_whole_server_on_another_machine() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = server(here.path(), &[lease(2, "laptop"), lease(3, "desk")], &[invite(1, 1), invite(2, 0)]);
    issue(&folder, 4);
    fs::write(folder.path("endpoints.json"), "{}").unwrap();
    fs::set_permissions(folder.path("endpoints.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let bytes = backup(&folder).to_bytes().unwrap();
    let read = Backup::from_bytes(&bytes).unwrap();
    assert_eq!((read.interface(), read.machines()), ("rg0", 2));
    let restored = read.restore_in(there.path(), "rg7", false).unwrap();
    assert!(restored.before.is_none() && restored.waits);
    assert_eq!(restored.revoked, 1);
    let other = Folder::open_at(&there.path().join("rg7")).unwrap();
    for name in [KEY, SETTINGS, NETWORK_KEY, PAIRS, ROSTER, ENDPOINTS] {
        assert_eq!(other.read(name).unwrap(), folder.read(name).unwrap(), "{name}");
        assert_eq!(fs::metadata(other.path(name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
    let state = backup(&other).state;
    assert_eq!(names(&state), ["desk", "laptop"]);
    assert!(state.invites.values().all(|invite| invite.uses_left == 0 || invite.revoked.is_some()), "{state:?}");
    assert!(fs::read_to_string(other.path("audit.jsonl")).unwrap().contains("\"event\":\"restored\""));
    assert_eq!(fs::read_dir(there.path()).unwrap().count(), 1, "nothing else stays");
}

/// Every changed bit and every missing byte is detected.
#[test]
fn damage_and_foreign_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = server(dir.path(), &[lease(2, "laptop")], &[]);
    let bytes = backup(&folder).to_bytes().unwrap();
    let refused = |bytes: &[u8]| Backup::from_bytes(bytes).map(drop).unwrap_err().to_string();
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1 << (at % 8);
        let error = refused(&damaged);
        let expected = if at < 8 {
            "no backup"
        } else if at < 12 {
            "version"
        } else {
            "damaged"
        };
        assert!(error.contains(expected), "{at}: {error}");
        assert!(Backup::from_bytes(&bytes[..at]).is_err(), "{at} bytes of it");
    }
    assert!(refused(&[&bytes[..], b"\0"].concat()).contains("damaged"));
    assert!(refused(b"age-encryption.org/v1").contains("no backup"));
    let mut future = bytes.to_vec();
    future[8] = 3;
    assert!(refused(&future).contains("version 3, and this program knows version 2: install the newer program"));
}

/// Parts with the right hash that do not make a server.
#[test]
fn parts_that_make_no_server_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = server(dir.path(), &[lease(2, "laptop")], &[]);
    issue(&folder, 1);
    let refused = |change: &dyn Fn(&mut Backup)| {
        let mut broken = backup(&folder);
        change(&mut broken);
        let bytes = broken.to_bytes().unwrap();
        Backup::from_bytes(&bytes).map(drop).unwrap_err().to_string()
    };
    let text = |text: &str| Zeroizing::new(text.as_bytes().to_vec());
    assert!(refused(&|broken| drop(broken.files.remove(KEY))).contains("the key of the server"));
    assert!(refused(&|broken| drop(broken.files.insert(KEY, text("no key")))).contains("the key of the server"));
    assert!(refused(&|broken| drop(broken.files.insert(SETTINGS, text("{}")))).contains("settings"));
    assert!(refused(&|broken| drop(broken.files.remove(PAIRS))).contains("secret of the pairs"));
    assert!(refused(&|broken| drop(broken.files.insert(NETWORK_KEY, text("?")))).contains("key of the network"));
    assert!(
        refused(&|broken| {
            broken.files.remove(NETWORK_KEY);
            broken.files.remove(PAIRS);
        })
        .contains("not the key that has signed it")
    );
    assert!(refused(&|broken| broken.about.interface = "../etc".to_owned()).contains("interface"));
    let outside = Lease { v4: Some([192, 168, 1, 1].into()), ..lease(9, "far") };
    assert!(
        refused(&|broken| drop(broken.state.leases.insert(outside.public_key, outside.clone())))
            .contains("outside of the address pool")
    );
    let twice = Lease { v4: lease(2, "").v4, ..lease(9, "double") };
    assert!(
        refused(&|broken| drop(broken.state.leases.insert(twice.public_key, twice.clone())))
            .contains("leases 10.83.41.2 to both")
    );
}

/// Values that have been used up since the backup are not used again.
#[test]
fn an_older_backup_uses_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let rotates = lease(5, "rotates");
    let folder = server(
        dir.path(),
        &[lease(2, "laptop"), lease(3, "removed"), rotates.clone()],
        &[invite(1, 1), invite(2, 1), invite(3, 1)],
    );
    issue(&folder, 4);
    let old = backup(&folder);

    // Since then, one machine has joined, one was removed, one has changed its key, and invites were used and made.
    let rotated = Lease {
        public_key: PublicKey([0x55; 32]),
        old_key: Some(OldKey { public_key: rotates.public_key, until: 500 }),
        ..rotates.clone()
    };
    let renamed =
        Lease { name: Some("notebook".to_owned()), announced: vec!["192.168.7.0/24".parse().unwrap()], ..lease(2, "") };
    let mut now = state(&[renamed, rotated.clone(), lease(6, "new")], &[invite(1, 0), invite(3, 1), invite(4, 1)]);
    (now.time, now.serial) = (400, 12);
    let gone = PublicKey([3; 32]);
    now.removed.insert(gone, Tombstone { public_key: gone, serial: 9, removed: 300 });
    now.released.insert(
        PublicKey([8; 32]),
        Released { public_key: PublicKey([8; 32]), v4: Some([10, 83, 41, 8].into()), v6: None, until: 900 },
    );
    let mut present = backup(&folder);
    present.state = now;
    present.files.insert(PAIRS, Zeroizing::new(key::to_base64(&[7; 32]).as_bytes().to_vec()));

    let losses = old.losses(&present.state);
    assert_eq!((losses.gone, losses.back), (vec!["new".to_owned()], vec!["removed".to_owned()]));
    let merged = old.merged(Some(&present), at(1_000)).unwrap();
    let state = &merged.state;
    assert_eq!(names(state), ["laptop", "removed", "rotates"]);
    assert_eq!(state.leases[&rotated.public_key].old_key, rotated.old_key, "the key of before is not back");
    assert!(!state.leases.contains_key(&rotates.public_key));
    assert_eq!(state.leases[&PublicKey([2; 32])].announced.len(), 1, "what the machine says is its own");
    assert_eq!((state.serial, state.time), (12, 1_000));
    let quarantined = &state.released[&PublicKey([6; 32])];
    assert_eq!(
        (quarantined.v4, quarantined.until),
        (Some([10, 83, 41, 6].into()), 1_000 + DAY),
        "the address of one who is gone"
    );
    assert!(state.released.contains_key(&PublicKey([8; 32])));
    assert!(!state.removed.contains_key(&gone), "who is back is not removed");
    let usable: Vec<_> = state
        .invites
        .values()
        .filter(|invite| invite.uses_left > 0 && invite.revoked.is_none())
        .map(|invite| invite.serial)
        .collect();
    assert_eq!(usable, [3, 4], "1 was used, and 2 is not known any more");
    assert_eq!(merged.files[PAIRS], present.files[PAIRS], "a server that has left knows the secret of before");
    merged.check().unwrap();

    // An address that was given to another machine: its holder in the backup gets it back.
    let mut taken = backup(&folder);
    taken.state = self::state(&[Lease { v4: lease(3, "").v4, ..lease(6, "heir") }], &[]);
    old.merged(Some(&taken), at(1_000)).unwrap().check().unwrap();
}

#[test]
fn no_number_of_a_roster_is_issued_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = server(dir.path(), &[], &[]);
    issue(&folder, 4);
    let old = backup(&folder);
    issue(&folder, 9);
    let new = backup(&folder);
    let number = |backup: Backup| backup.roster().unwrap().version().number;
    assert_eq!(number(old.merged(Some(&new), at(1)).unwrap()), 9);
    assert_eq!(number(new.merged(Some(&old), at(1)).unwrap()), 9);
    assert_eq!(number(old.merged(None, at(1)).unwrap()), 4);
}

#[test]
fn a_key_that_was_changed_since_stays_changed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = server(dir.path(), &[], &[]);
    let old = backup(&folder);
    let new = StaticSecret::from_bytes([9; 32]);
    folder.replace(KEY_BEFORE, format!("{} 9999999999 3\n", *key::to_base64(&[5; 32])).as_bytes()).unwrap();
    folder.replace_private_key(&new).unwrap();
    let merged = old.merged(Some(&backup(&folder)), at(1)).unwrap();
    assert_eq!(merged.public_key().unwrap(), new.public_key());
    assert!(merged.files.contains_key(KEY_BEFORE));
    // A previous key that has ended does not come back.
    let with = backup(&folder);
    folder.remove(KEY_BEFORE).unwrap();
    assert!(!with.merged(Some(&backup(&folder)), at(1)).unwrap().files.contains_key(KEY_BEFORE));
}

#[test]
fn the_state_of_before_is_kept_aside_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = server(dir.path(), &[lease(2, "laptop")], &[]);
    let old = backup(&folder);
    fs::write(folder.path("audit.jsonl"), "{\"event\":\"peer-added\"}\n").unwrap();
    let mut store = FileStore::open(&folder.path(LEASES)).unwrap();
    let before = store.load().unwrap().unwrap();
    store.commit(&[rustguard_enroll::store::Change::Lease(lease(3, "desk"))], &before).unwrap();

    // While a server uses the folder, it cannot be replaced.
    let error = old.restore_in(dir.path(), "rg0", true).unwrap_err().to_string();
    assert!(error.contains("in use by process"), "{error}");
    drop(store);
    let error = old.restore_in(dir.path(), "rg0", false).unwrap_err().to_string();
    assert!(
        error.contains("it does not have desk, which would have to join again") && error.contains("--yes"),
        "{error}"
    );
    assert_eq!(names(&backup(&folder).state), ["desk", "laptop"], "nothing was changed");
    let restored = old.restore_in(dir.path(), "rg0", true).unwrap();
    let aside = restored.before.unwrap();
    assert_eq!(
        (names(&backup(&folder).state), aside.file_name().unwrap().to_str()),
        (vec!["laptop"], Some("rg0.before-restore"))
    );
    assert!(!restored.waits, "the numbers are known here");
    assert_eq!(names(&Backup::of_folder("rg0", &Folder::open_at(&aside).unwrap()).unwrap().state), ["desk", "laptop"]);
    let audit = fs::read_to_string(folder.path("audit.jsonl")).unwrap();
    assert!(audit.contains("peer-added") && audit.contains("restored"), "{audit}");
    // A restored server that waits for a member still waits after another restore.
    folder.replace(crate::network::files::RESTORED, b"7\n").unwrap();
    fs::set_permissions(folder.path(SETTINGS), fs::Permissions::from_mode(0o644)).unwrap();
    let again = backup(&folder).restore_in(dir.path(), "rg0", false).unwrap();
    assert!(again.waits && folder.path(crate::network::files::RESTORED).exists());
    assert!(again.before.unwrap().ends_with("rg0.before-restore-2"));

    let elsewhere = tempfile::tempdir().unwrap();
    server(elsewhere.path(), &[], &[]);
    let error = old.restore_in(elsewhere.path(), "rg0", true).unwrap_err().to_string();
    assert!(error.contains("has another server, with the key"), "{error}");
    let member = elsewhere.path().join("rg1");
    fs::create_dir(&member).unwrap();
    fs::set_permissions(&member, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(member.join("key"), "x").unwrap();
    let error = old.restore_in(elsewhere.path(), "rg1", true).unwrap_err().to_string();
    assert!(error.contains("of a member, and not of a server"), "{error}");
}

#[test]
fn a_star_and_a_waiting_lease_are_backed_up_too() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open_at(&dir.path().join("rg0")).unwrap();
    let network = NetworkSettings { star: true, ..NetworkSettings::default() };
    let settings = Settings { pools: vec!["10.83.41.0/24".parse().unwrap()], network, ..Settings::default() };
    settings.store(&folder).unwrap();
    Prepared::new("rg0", &folder, settings, None).unwrap();
    let mut star = backup(&folder);
    let waiting =
        Lease { state: LeaseState::Pending { until: 9 }, origin: Origin::Window, member: false, ..lease(4, "waits") };
    star.state.leases.insert(waiting.public_key, waiting);
    let read = Backup::from_bytes(&star.to_bytes().unwrap()).unwrap();
    assert_eq!(read.state, star.state);
    assert!(read.network().unwrap().is_none() && !read.restore_in(dir.path(), "rg5", false).unwrap().waits);
}

#[test]
fn the_file_is_the_owners_alone_and_replaced_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backup");
    fs::write(&path, "an older one").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    // Another user has made the file in a shared folder. Only root can set this up.
    let _ = chown(&path, Some(65_534), Some(65_534));
    write_backup(&path, b"new").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().uid(), rustix::process::geteuid().as_raw());
    assert_eq!((fs::read(&path).unwrap(), fs::metadata(&path).unwrap().mode() & 0o777), (b"new".to_vec(), 0o600));
    assert!(write_backup(dir.path(), b"new").is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Anything but a file stays unchanged, and the error says what to do.
#[test]
fn nothing_but_a_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "old").unwrap();
    symlink(at("file"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let kinds = || {
        let mut kinds: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), entry.file_type().unwrap()))
            .collect();
        kinds.sort_by_key(|(name, _)| name.clone());
        kinds
    };
    let before = kinds();
    for (path, words) in [
        (at("link"), &["symbolic link", "/file, or remove the link"][..]),
        (at("dangling"), &["symbolic link"]),
        (at("pipe"), &["pipe or socket", "backup - >FILE"]),
        (at("socket"), &["pipe or socket"]),
        (at("folder"), &["folder", "a file in it"]),
        ("/dev/null".into(), &["a device", "name a file"]),
    ] {
        let error = write_backup(&path, b"new").unwrap_err().to_string();
        for words in words {
            assert!(error.contains(words), "{}: {error}", path.display());
        }
    }
    assert_eq!(kinds(), before);
    assert_eq!(fs::read(at("file")).unwrap(), b"old");
}

#[test]
fn a_policy_comes_along_and_is_checked() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = server(here.path(), &[lease(2, "laptop")], &[]);
    issue(&folder, 4);
    let file = here.path().join("rg0.policy");
    let of = |text: &str| {
        fs::write(&file, text).unwrap();
        Backup::of_folder_and("rg0", &folder, Some(&file))
    };
    // Without a policy, the backup has version 1, which earlier programs can read.
    let old = Backup::of_folder_and("rg0", &folder, Some(&file)).unwrap().to_bytes().unwrap();
    assert_eq!(old[8..12], [1, 0, 0, 0]);
    let put = |backup: &Backup| backup.put_policy_at(there.path().join("etc/rg7.policy"));
    assert!(put(&Backup::from_bytes(&old).unwrap()).unwrap().is_none());

    let text = "# all of it\nallow server -> * icmp\n";
    let bytes = of(text).unwrap().to_bytes().unwrap();
    assert_eq!(bytes[8..12], [2, 0, 0, 0], "an earlier program says that it is newer");
    let read = Backup::from_bytes(&bytes).unwrap();
    read.restore_in(there.path(), "rg7", false).unwrap();
    let first = put(&read).unwrap().unwrap();
    assert!(first.before.is_none() && fs::read_to_string(&first.path).unwrap() == text);
    assert_eq!(fs::metadata(&first.path).unwrap().mode() & 0o777, 0o600);
    assert!(put(&read).unwrap().is_none(), "it is there");
    // The previous policy is kept, and comes back if the backup is not restored.
    fs::write(&first.path, "allow * -> *\n").unwrap();
    fs::set_permissions(&first.path, fs::Permissions::from_mode(0o664)).unwrap();
    let second = put(&read).unwrap().unwrap();
    assert_eq!(fs::read_to_string(&second.path).unwrap(), text);
    assert_eq!(fs::metadata(&second.path).unwrap().mode() & 0o777, 0o644);
    second.undo().unwrap();
    assert_eq!(fs::read_to_string(&first.path).unwrap(), "allow * -> *\n");
    assert_eq!(fs::read_dir(there.path().join("etc")).unwrap().count(), 1);
    fs::remove_file(&first.path).unwrap();
    put(&read).unwrap().unwrap().undo().unwrap();
    assert!(!first.path.exists());

    // A policy that no server accepts is refused.
    let refused = |text: &str| of(text).map(drop).unwrap_err().to_string();
    assert!(refused("alow a -> b\n").contains("rg0.policy:1:1: a line begins with"));
    assert!(refused("test 10.0.0.1 -> 10.0.0.2 allowed\n").contains("because of 1:1: this test fails"));
    for (wrong, words) in [
        (&b"allow a -> b\nalow b"[..], "no server takes the policy in it, because of 2:1: a line begins with"),
        (b"test server -> 10.0.0.2 allowed\ntest 10.0.0.1 -> 10.0.0.2 allowed", "this test fails"),
        (b"\xff", "no text"),
    ] {
        let mut broken = Backup::from_bytes(&bytes).unwrap();
        broken.files.insert(POLICY, Zeroizing::new(wrong.to_vec()));
        let error = Backup::from_bytes(&broken.to_bytes().unwrap()).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
