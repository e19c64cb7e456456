//! A standby takes the server's place with the state that it has stored.
use super::*;
use crate::{
    Standby, StandbyState,
    network::{
        files::Secrets,
        key_before::{KeyBefore, STANDBY_TIME},
    },
};
use rustguard_enroll::lease::ServerRole;
use rustguard_network::roster::{member::Role, server_state::ServerState};
use std::path::PathBuf;

const STANDBY: u8 = 9;
const STATE: &str = "server-state";

fn own_key() -> StaticSecret {
    StaticSecret::from_bytes([STANDBY; 32])
}

/// The lease of the standby in the state.
fn own_lease() -> Lease {
    let public_key = own_key().public_key();
    Lease { server: ServerRole::Standby, public_key, ..lease(STANDBY, "standby") }
}

/// The machine of the standby, as a member with the state of this server, whose newest roster has this number.
fn member(here: &Folder, folders: &Path, number: u64) -> (Folder, NetworkKey) {
    let secrets = Secrets::open(here).unwrap();
    let state = FileStore::open(&here.path(LEASES)).unwrap().load().unwrap().unwrap();
    let text = Backup::for_standby("rg0", here, None, state).unwrap().to_bytes().unwrap();
    let folder = Folder::open_at(&folders.join("rg5")).unwrap();
    folder.replace(STATE, &ServerState::new(&secrets.network, number, 90_000, text).to_bytes()).unwrap();
    let mut settings = RosterSettings::new(Label::clean("rg0").unwrap());
    settings.pair_secret = Some(secrets.pairs.id());
    let server = Member::new(backup(here).public_key().unwrap(), Label::clean("server").unwrap());
    let own = Member::new(own_key().public_key(), Label::clean("standby").unwrap());
    let members = [server, own].map(|member| member.with_role(Role::Server).into());
    let roster = Roster::issue(&secrets.network, number, 50, settings, members.to_vec()).unwrap();
    folder.replace(ROSTER, &roster.to_bytes()).unwrap();
    (folder, secrets.network.public_key())
}

fn read(folder: &Folder, network: NetworkKey) -> StandbyState {
    StandbyState::read_in(folder, network).unwrap().expect("a state")
}

#[test]
fn the_state_is_that_of_the_server_and_the_machine_stays_itself() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let leases = [lease(2, "laptop"), lease(3, "desk"), own_lease()];
    let server = server(here.path(), &leases, &[invite(1, 1), invite(2, 0)]);
    let (folder, network) = member(&server, there.path(), 41);
    let kept = read(&folder, network);
    assert_eq!((kept.machines(), kept.made(), kept.list()), (3, 90, "41".to_owned()));
    let standby = Standby {
        key: own_key(),
        endpoint: Some("vpn2.example.org:7777".parse().unwrap()),
        port: Some(7777),
        endpoints: [(PublicKey([2; 32]), "198.51.100.2:5".parse().unwrap())].into(),
    };
    let taken = kept.take_over_in(there.path(), "rg5", &standby).unwrap();
    assert_eq!(taken.before, there.path().join("rg5.before-take-over"));
    assert!(taken.before.join(STATE).exists(), "what it was as a member is kept");

    let now = Folder::open_at(&there.path().join("rg5")).unwrap();
    let after = Backup::of_folder("rg5", &now).unwrap();
    assert_eq!(after.public_key().unwrap(), backup(&server).public_key().unwrap(), "phones and invites know it");
    assert_eq!((after.network().unwrap(), names(&after.state)), (Some(network), vec!["desk", "laptop"]));
    assert_eq!(after.state.invites[&TokenId([1; 8])].uses_left, 1, "an invite that was not used still holds");
    assert!(after.state.invites[&TokenId([1; 8])].revoked.is_none());
    assert!(after.state.released.contains_key(&own_key().public_key()), "others know its address as its own");
    let settings = after.settings().unwrap();
    assert_eq!((settings.endpoint.as_deref(), settings.port), (Some("vpn2.example.org:7777"), 7777));
    let heard = crate::endpoints::load(&now);
    assert_eq!(heard.values().collect::<Vec<_>>(), [&"198.51.100.2:5".parse().unwrap()]);

    // Members that were off know the key that the machine had as a standby, with the preshared keys of pairs.
    let time = crate::clock::now();
    let before = KeyBefore::load(&now, &after.public_key().unwrap(), time).unwrap().expect("the key before");
    assert_eq!(before.public_key(), own_key().public_key());
    assert!(before.left(time.instant) > STANDBY_TIME / 2 && before.told().is_none());
    let pairs = Secrets::open(&server).unwrap().pairs;
    assert_eq!(before.of_standby.as_ref().map(PairSecret::id), Some(pairs.id()));
    assert!(!now.path(crate::network::files::RESTORED).exists(), "it waits for no member's word");
    Prepared::new("rg5", &now, settings, None).unwrap();
}

/// A state that is damaged, missing or of another network changes nothing.
#[test]
fn a_state_that_the_network_has_not_signed_is_none() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = server(here.path(), &[own_lease()], &[]);
    let (folder, network) = member(&server, there.path(), 41);
    let whole = fs::read(folder.path(STATE)).unwrap();
    for at in [0, 70, 150, whole.len() / 2, whole.len() - 1] {
        let mut broken = whole.clone();
        broken[at] ^= 1;
        fs::write(folder.path(STATE), broken).unwrap();
        assert!(StandbyState::read_in(&folder, network).unwrap().is_none(), "byte {at}");
    }
    fs::write(folder.path(STATE), &whole).unwrap();
    let other = NetworkSecret::from_bytes(&[8; 32]).public_key();
    assert!(StandbyState::read_in(&folder, other).unwrap().is_none());
    assert!(StandbyState::read_in(&folder, network).unwrap().is_some());
    fs::remove_file(folder.path(STATE)).unwrap();
    assert!(StandbyState::read_in(&folder, network).unwrap().is_none());
    let files = fs::read_dir(there.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<PathBuf>>();
    assert_eq!(files, [folder.as_path()]);
}

/// An unchanged state has the same bytes, so that standbys are told only of changes.
#[test]
fn the_same_state_has_the_same_bytes_at_any_time() {
    let here = tempfile::tempdir().unwrap();
    let folder = server(here.path(), &[lease(2, "laptop")], &[]);
    let bytes = || {
        let state = FileStore::open(&folder.path(LEASES)).unwrap().load().unwrap().unwrap();
        Backup::for_standby("rg0", &folder, None, state).unwrap().to_bytes().unwrap()
    };
    let before = bytes();
    folder.replace("endpoints.json", b"{}").unwrap();
    issue(&folder, 7);
    assert_eq!(bytes(), before);
}
