mod adoption;
mod shared;

use super::*;
use rustguard_enroll::{
    lease::{PresharedKey, ServerRole, Terms},
    ledger::{Grant, Policy as LeasePolicy, Request},
    pool::Pools,
    store::MemoryStore,
};
use rustguard_network::roster::roster::Changes;
use std::fs;

const SERVER: PublicKey = PublicKey([1; 32]);
const HOUR: Duration = FRESH;

fn at(time: Duration) -> Now {
    Now { instant: Instant::from_nanos(1_000_000_000) + time, unix: Duration::from_secs(1_800_000_000) + time }
}

fn start() -> Now {
    at(Duration::ZERO)
}

fn settings() -> Settings {
    let endpoint = Some("203.0.113.1".to_owned());
    Settings { pools: vec!["10.0.0.0/16".parse().unwrap()], endpoint, ..Settings::default() }
}

fn ledger() -> Ledger<MemoryStore> {
    let pools = Pools::new(&settings().pools).unwrap();
    Ledger::open(MemoryStore::default(), pools, LeasePolicy::default(), start()).unwrap()
}

fn key(number: u32) -> PublicKey {
    PublicKey(rustguard_crypto::hash::hash(&[&number.to_be_bytes()]))
}

fn join(ledger: &mut Ledger<MemoryStore>, number: u32, name: &str, now: Now) {
    let grant = Grant::Admin(Terms::default().with_tags(vec!["CI".to_owned()]));
    let request = Request::new(key(number), PresharedKey::from_bytes(&[5; 32]), grant).with_name(name.to_owned());
    ledger.admit(request, now).unwrap();
}

struct Server {
    folder: Folder,
    _dir: tempfile::TempDir,
}

impl Server {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { folder: Folder::open_at(&dir.path().join("rg0")).unwrap(), _dir: dir }
    }

    fn issuer(&self, now: Now) -> Issuer {
        self.issuer_with((SERVER, None), now)
    }

    /// The issuer of a server with these keys, present and previous.
    fn issuer_with(&self, keys: (PublicKey, Option<PublicKey>), now: Now) -> Issuer {
        self.opened(keys, "Hub", now)
    }

    /// The issuer on a host with this name.
    fn issuer_on(&self, host: &str, now: Now) -> Issuer {
        self.opened((SERVER, None), host, now)
    }

    fn opened(&self, keys: (PublicKey, Option<PublicKey>), host: &str, now: Now) -> Issuer {
        let pairs = PairSecret::from_bytes(&[7; 32]);
        let secrets = Secrets { network: NetworkSecret::from_bytes(&[9; 32]), pairs };
        Issuer::open(secrets, self.folder.clone(), "rg0", keys, Some(host.to_owned()), now).unwrap()
    }
}

fn policy(text: &str) -> Option<Arc<Policy>> {
    let (policy, diagnostics) = Policy::parse(text);
    Some(Arc::new(policy.unwrap_or_else(|| panic!("{diagnostics:?}"))))
}

/// The policy sheet of the member with this key.
fn sheet(roster: &Roster, key: &PublicKey) -> Option<String> {
    let member = roster.member(key).unwrap();
    assert_eq!(member.has_sheet(), roster.sheet(member).is_some(), "the issuer has all of them");
    roster.sheet(member).map(|sheet| String::from_utf8(sheet.to_vec()).unwrap())
}

#[test]
fn members_get_the_policy_with_the_next_roster_and_others_are_as_they_were() {
    let (server, mut ledger) = (Server::new(), ledger());
    let member = |ledger: &mut Ledger<MemoryStore>, number, name: &str| {
        let grant = Grant::Admin(Terms::default().with_tags(vec!["CI".to_owned()]));
        let request = Request::new(key(number), PresharedKey::from_bytes(&[5; 32]), grant).with_member(true);
        ledger.admit(request.with_name(name.to_owned()), start()).unwrap();
    };
    member(&mut ledger, 1, "laptop");
    join(&mut ledger, 2, "phone", start());
    let mut issuer = server.issuer(start());
    let before = issuer.issue(&settings(), &ledger, start()).unwrap();
    assert_eq!([SERVER, key(1), key(2)].map(|key| sheet(&before, &key)), [None, None, None]);
    issuer.set_policy(policy("group all = tag:ci\nallow hub -> all icmp\nallow laptop -> phone"));
    let with = issuer.issue(&settings(), &ledger, at(HOUR / 2)).unwrap();
    let [hub, laptop, phone] = [SERVER, key(1), key(2)].map(|key| sheet(&with, &key));
    assert_eq!(laptop.as_deref(), Some("rustguard policy 1\n2 allow hub -> tag:ci icmp\n"));
    assert_eq!(hub.as_deref(), Some("rustguard policy 1\n2 allow hub -> tag:ci icmp\n3 allow laptop -> phone\n"));
    assert_eq!(phone, None, "its server enforces for it");
    // A new machine changes no record of the others.
    member(&mut ledger, 3, "desk");
    issuer.changed();
    let more = issuer.issue(&settings(), &ledger, at(HOUR)).unwrap();
    assert!([SERVER, key(1)].iter().all(|key| Arc::ptr_eq(more.member(key).unwrap(), with.member(key).unwrap())));
    assert_eq!(sheet(&more, &key(3)), laptop);
    assert_eq!(issuer.directory(&settings(), &ledger).names().count(), 4);
    issuer.set_policy(None);
    let none = issuer.issue(&settings(), &ledger, at(HOUR * 2)).unwrap();
    assert_eq!(sheet(&none, &SERVER), None);
    // After a restart, the roster on the disk has all sheets.
    issuer.set_policy(policy("allow * -> *"));
    issuer.issue(&settings(), &ledger, at(HOUR * 3)).unwrap();
    let again = server.issuer(at(HOUR * 3));
    assert_eq!(sheet(again.last().unwrap(), &key(1)).as_deref(), Some("rustguard policy 1\n1 allow * -> *\n"));
}

fn number(roster: Option<Arc<Roster>>) -> Option<u64> {
    roster.map(|roster| roster.version().number)
}

#[test]
fn the_roster_has_the_server_and_all_who_have_a_lease() {
    let (server, mut ledger) = (Server::new(), ledger());
    let mut settings = settings();
    settings.routes = ["192.168.1.7/24", "192.168.1.0/24"].map(|route| route.parse().unwrap()).into();
    join(&mut ledger, 1, "Laptop", start());
    join(&mut ledger, 2, "hub", at(HOUR));
    let roster = server.issuer(start()).issue(&settings, &ledger, start()).unwrap();
    let hub = roster.member(&SERVER).unwrap();
    assert_eq!((hub.name.as_str(), hub.role), ("hub", Role::Server));
    assert_eq!(hub.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(hub.endpoints, ["203.0.113.1:51820".parse().unwrap()]);
    assert_eq!(hub.prefixes, ["192.168.1.0/24".parse().unwrap()]);
    let laptop = roster.member(&key(1)).unwrap();
    assert_eq!((laptop.name.as_str(), laptop.role), ("laptop", Role::Client(SERVER)));
    assert_eq!(laptop.addresses, ledger.lease(&key(1)).unwrap().addresses().collect::<Vec<_>>());
    assert_eq!(laptop.tags, ["ci".parse().unwrap()]);
    assert_eq!(roster.member(&key(2)).unwrap().name.as_str(), "hub-2");
    assert_eq!((roster.settings().mtu, roster.settings().name.as_str()), (Some(1360), "rg0"));
}

/// More servers than a roster can have are refused when they are invited. This server is one of them.
#[test]
fn the_ledger_admits_as_many_servers_as_a_roster_has() {
    let most = rustguard_network::roster::member::MAX_SERVERS;
    assert_eq!(rustguard_enroll::lease::MAX_SERVERS + 1, most);
}

#[test]
fn who_joined_as_a_member_is_one_with_the_prefixes_that_were_admitted() {
    let (server, mut ledger) = (Server::new(), ledger());
    let admitted: Vec<IpNet> = vec!["192.168.1.0/24".parse().unwrap()];
    for number in 1..=2 {
        let grant = Grant::Admin(Terms::default().with_admitted(admitted.clone()));
        let request = Request::new(key(number), PresharedKey::from_bytes(&[5; 32]), grant).with_member(number == 1);
        ledger.admit(request, start()).unwrap();
    }
    let roster = server.issuer(start()).issue(&settings(), &ledger, start()).unwrap();
    let [member, client] = [1, 2].map(|number| roster.member(&key(number)).unwrap());
    assert_eq!((member.role, member.prefixes.len()), (Role::Member, 0), "it announces nothing");
    assert_eq!((client.role, &client.prefixes), (Role::Client(SERVER), &admitted));
}

#[test]
fn the_first_change_is_told_at_once_and_no_change_is_told_once_an_hour() {
    let (server, mut ledger) = (Server::new(), ledger());
    let mut issuer = server.issuer(start());
    assert_eq!(number(issuer.issue(&settings(), &ledger, start())), Some(1));
    assert_eq!(issuer.deadline(), start().instant + HOUR);
    let later = at(QUIET * 2);
    join(&mut ledger, 1, "laptop", later);
    issuer.changed();
    assert!(issuer.deadline() <= later.instant, "at once");
    assert_eq!(number(issuer.issue(&settings(), &ledger, later)), Some(2));
    issuer.changed();
    assert_eq!(issuer.deadline(), later.instant + FIRST_PAUSE);
    let soon = at(QUIET * 2 + FIRST_PAUSE);
    assert_eq!(number(issuer.issue(&settings(), &ledger, soon)), None, "nothing has changed");
    let hour = at(QUIET * 2 + HOUR);
    assert_eq!(issuer.deadline(), hour.instant);
    let last = issuer.last().cloned().unwrap();
    let fresh = issuer.issue(&settings(), &ledger, hour).unwrap();
    assert_eq!((fresh.version().number, fresh.changes_since(&last)), (3, Changes::default()));
    assert!(fresh.issued() > last.issued());
    // Changed settings are published as well.
    issuer.changed();
    let shorter = Settings { dns: vec!["10.0.0.1".parse().unwrap()], ..settings() };
    let told = issuer.issue(&shorter, &ledger, at(HOUR * 2)).unwrap();
    assert_eq!(told.settings().name_servers, shorter.dns);
}

/// 10,000 machines join in ten seconds. There are few rosters, and each has all machines so far.
#[test]
fn many_changes_make_few_rosters() {
    const MACHINES: u32 = 10_000;
    let (server, mut ledger) = (Server::new(), ledger());
    let mut issuer = server.issuer(start());
    let (mut issued, began) = (0, std::time::Instant::now());
    for number in 0..MACHINES {
        let now = at(Duration::from_millis(number.into()));
        join(&mut ledger, number, "ubuntu", now);
        issuer.changed();
        issued += u32::from(issuer.issue(&settings(), &ledger, now).is_some());
    }
    let end = at(Duration::from_millis(u64::from(MACHINES)) + LONGEST_PAUSE);
    issued += u32::from(issuer.issue(&settings(), &ledger, end).is_some());
    println!("{issued} rosters for {MACHINES} machines, in {:?}", began.elapsed());
    assert!((10..40).contains(&issued), "{issued} rosters");
    let last = issuer.last().unwrap();
    assert_eq!(last.members().len(), MACHINES as usize + 1);
    let mut names: Vec<_> = last.members().map(|member| member.name.to_string()).collect();
    names.sort_by_key(String::len);
    assert_eq!((&*names[0], names[MACHINES as usize].len()), ("hub", "ubuntu-10000".len()));
}

#[test]
fn nothing_is_told_that_is_not_on_the_disk() {
    let (server, mut ledger) = (Server::new(), ledger());
    let mut issuer = server.issuer(start());
    assert_eq!(number(issuer.issue(&settings(), &ledger, start())), Some(1));
    join(&mut ledger, 1, "laptop", start());
    issuer.changed();
    let (folder, aside) = (server.folder.as_path(), server.folder.as_path().with_extension("aside"));
    fs::rename(folder, &aside).unwrap();
    assert!(issuer.issue(&settings(), &ledger, at(QUIET)).is_none());
    assert!(issuer.failure().is_some_and(|why| why.contains("roster")), "{:?}", issuer.failure());
    assert_eq!(issuer.last().unwrap().version().number, 1);
    assert_eq!(issuer.deadline(), at(QUIET + RETRY).instant, "it is tried again, and not at once");
    fs::rename(&aside, folder).unwrap();
    let told = issuer.issue(&settings(), &ledger, at(QUIET + RETRY)).unwrap();
    assert_eq!((told.version().number, issuer.failure()), (2, None));
    let kept = files::last_roster(&server.folder, &issuer.network()).unwrap().unwrap();
    assert_eq!((kept.version(), kept.members().len()), (told.version(), 2));
}

#[test]
fn a_number_is_never_issued_twice_whatever_the_clock_says() {
    let (server, mut ledger) = (Server::new(), ledger());
    let first = server.issuer(start()).issue(&settings(), &ledger, start()).unwrap();
    // The clock was a day ahead, and is right again.
    let before = Now { unix: start().unix - Duration::from_secs(86_400), ..start() };
    let mut issuer = server.issuer(before);
    let second = issuer.issue(&settings(), &ledger, before).unwrap();
    assert!(second.version() > first.version() && second.issued() < first.issued());
    // A restart without a change needs no new roster.
    let mut issuer = server.issuer(before);
    assert!(issuer.issue(&settings(), &ledger, before).is_none());
    join(&mut ledger, 1, "laptop", start());
    issuer.changed();
    assert_eq!(number(issuer.issue(&settings(), &ledger, before)), Some(3));
}

/// A server whose roster file was set back to the one before `changes`, and the roster that members have.
fn restored(
    server: &Server,
    ledger: &mut Ledger<MemoryStore>,
    changes: impl FnOnce(&mut Ledger<MemoryStore>),
) -> (Issuer, Arc<Roster>) {
    let mut issuer = server.issuer(start());
    issuer.issue(&settings(), ledger, start()).unwrap();
    let backup = fs::read(server.folder.path(ROSTER)).unwrap();
    changes(ledger);
    issuer.changed();
    issuer.issue(&settings(), ledger, at(HOUR)).unwrap();
    let theirs = issuer.issue(&settings(), ledger, at(HOUR * 3)).unwrap();
    server.folder.replace(ROSTER, &backup).unwrap();
    let issuer = server.issuer(at(HOUR * 4));
    assert_eq!(issuer.last().unwrap().version().number, 1);
    (issuer, theirs)
}

#[test]
fn a_folder_whose_roster_alone_is_old_goes_beyond_what_members_have() {
    let (server, mut ledger) = (Server::new(), ledger());
    join(&mut ledger, 1, "laptop", start());
    let (mut issuer, theirs) = restored(&server, &mut ledger, |ledger| join(ledger, 2, "desk", at(QUIET)));
    issuer.issue(&settings(), &ledger, at(HOUR * 4)).unwrap();
    // A roster signed with another key does not raise the number.
    let stranger = NetworkSecret::from_bytes(&[8; 32]);
    let forged = Roster::issue(&stranger, 1_000_000, 0, settings().to_roster("rg0"), []).unwrap();
    issuer.heard(&forged);
    assert!(issuer.issue(&settings(), &ledger, at(HOUR * 4 + QUIET)).is_none());
    issuer.heard(&theirs);
    let next = issuer.issue(&settings(), &ledger, at(HOUR * 4 + QUIET)).unwrap();
    assert_eq!(next.version().number, theirs.version().number + 1);
    // Hearing of the same roster again changes nothing.
    issuer.heard(&theirs);
    assert!(issuer.issue(&settings(), &ledger, at(HOUR * 4 + QUIET * 2)).is_none());
}

/// The machine that joined after the copy would be excluded, and the removed machine would be readmitted.
#[test]
fn an_older_copy_issues_nothing_that_changes_who_is_in_unless_the_administrator_says_so() {
    let (server, mut now_there, mut copy) = (Server::new(), ledger(), ledger());
    for ledger in [&mut now_there, &mut copy] {
        join(ledger, 1, "laptop", start());
        join(ledger, 2, "stolen", start());
    }
    let (mut issuer, theirs) = restored(&server, &mut now_there, |ledger| {
        join(ledger, 3, "desk", at(QUIET));
        ledger.remove(&key(2), at(QUIET)).unwrap();
    });
    // A machine that joins before the members' roster is known does not count as a removed one.
    join(&mut copy, 4, "new", at(HOUR * 4));
    let now = at(HOUR * 4 + QUIET);
    assert!(issuer.go_on().is_err(), "there is nothing to decide yet");
    issuer.heard(&theirs);
    assert!(issuer.issue(&settings(), &copy, now).is_none());
    let failure = issuer.failure().unwrap().to_owned();
    let names = ["does not have desk,", "still has stolen,", "rustguard reload rg0 --restored"];
    assert!(names.iter().all(|part| failure.contains(part)) && !failure.contains("new,"), "{failure}");
    let later = at(HOUR * 9);
    assert!(issuer.issue(&settings(), &copy, later).is_none(), "time decides nothing");
    issuer.go_on().unwrap();
    let next = issuer.issue(&settings(), &copy, later).unwrap();
    assert_eq!(next.version().number, theirs.version().number + 1);
    assert!(next.member(&key(3)).is_none() && next.member(&key(2)).is_some() && issuer.failure().is_none());
}

/// On another machine, the numbers that were issued after the backup are unknown, until the first member reports its
/// roster. Clients have no roster.
#[test]
fn a_backup_on_another_machine_waits_for_the_word_of_a_member() {
    let (server, mut ledger) = (Server::new(), ledger());
    join(&mut ledger, 1, "phone", start());
    server.issuer(start()).issue(&settings(), &ledger, start()).unwrap();
    let restored = || server.folder.replace(files::RESTORED, b"7\n").unwrap();
    let moved = Settings { endpoint: Some("198.51.100.9".to_owned()), ..settings() };
    restored();
    let next = server.issuer(at(HOUR)).issue(&moved, &ledger, at(HOUR)).unwrap();
    assert_eq!(next.version().number, 2, "with clients only");

    server_lease(&mut ledger, 2);
    restored();
    let mut issuer = server.issuer(at(HOUR));
    assert!(issuer.waits() && issuer.issue(&settings(), &ledger, at(HOUR * 2)).is_none());
    assert!(
        issuer.failure().is_some_and(|text| text.contains("rustguard reload rg0 --restored")),
        "{:?}",
        issuer.failure()
    );
    // The server still waits after a restart, however much time passes.
    let mut issuer = server.issuer(at(HOUR * 3));
    assert!(issuer.issue(&settings(), &ledger, at(HOUR * 9)).is_none());
    issuer.settle();
    assert_eq!(number(issuer.issue(&settings(), &ledger, at(HOUR * 9))), Some(3));
    assert!(!server.issuer(at(HOUR * 9)).waits() && issuer.failure().is_none());
    // Instead, the administrator may decide.
    restored();
    let mut issuer = server.issuer(at(HOUR * 10));
    issuer.go_on().unwrap();
    assert!(!issuer.waits() && issuer.issue(&moved, &ledger, at(HOUR * 10)).is_some());
}

/// A server that has left since the backup knows the backup's pair secret.
#[test]
fn the_pair_secret_of_a_backup_is_replaced_where_members_have_a_newer_one() {
    let (server, mut ledger) = (Server::new(), ledger());
    join(&mut ledger, 1, "laptop", start());
    let mut issuer = server.issuer(start());
    issuer.issue(&settings(), &ledger, start()).unwrap();
    let theirs = |number: u64, secret: &PairSecret| {
        let mut told = settings().to_roster("rg0");
        told.pair_secret = Some(secret.id());
        let network = NetworkSecret::from_bytes(&[9; 32]);
        let members = issuer.last().unwrap().members().cloned().collect::<Vec<_>>();
        Roster::issue(&network, number, start().unix.as_secs(), told, members).unwrap()
    };
    let (same, other) = (theirs(5, issuer.pairs()), theirs(9, &PairSecret::from_bytes(&[6; 32])));
    for (theirs, is_replaced) in [(same, false), (other, true)] {
        let mut issuer = server.issuer(at(HOUR));
        let before = issuer.pairs().id();
        issuer.heard(&theirs);
        let next = issuer.issue(&settings(), &ledger, at(HOUR)).unwrap();
        assert_eq!(issuer.pairs().id() != before, is_replaced);
        assert_eq!(next.settings().pair_secret, Some(issuer.pairs().id()));
    }
}

/// Otherwise two servers with one key would raise the numbers without end, and exclude each other's machines by turns.
#[test]
fn a_server_beside_a_running_copy_of_it_issues_nothing_more() {
    let (server, ledger) = (Server::new(), ledger());
    let mut one = server.issuer(start());
    one.issue(&settings(), &ledger, start()).unwrap();
    let mut settings_of_copy = settings().to_roster("rg0");
    settings_of_copy.mtu = Some(1300);
    let theirs = Roster::issue(&one.secret, 2, at(QUIET).unix.as_secs(), settings_of_copy, []).unwrap();
    one.heard(&theirs);
    assert!(one.issue(&settings(), &ledger, at(QUIET * 2)).is_none());
    assert!(one.failure().is_some_and(|text| text.contains("another server has a copy")), "{:?}", one.failure());
}

#[test]
fn an_endpoint_stays_known_while_the_machine_has_no_route() {
    let (server, ledger) = (Server::new(), ledger());
    let mut issuer = server.issuer(start());
    let known = issuer.issue(&settings(), &ledger, start()).unwrap().member(&SERVER).unwrap().endpoints.clone();
    // An endpoint that cannot be completed counts as unknown.
    let unknown = Settings { endpoint: Some("no endpoint".to_owned()), ..settings() };
    let told = server.issuer(start()).issue(&unknown, &ledger, at(HOUR)).unwrap();
    assert_eq!(told.member(&SERVER).unwrap().endpoints, known);
}

fn server_lease(ledger: &mut Ledger<MemoryStore>, number: u32) {
    let grant = Grant::Admin(Terms::default().with_server(true));
    let request = Request::new(key(number), PresharedKey::from_bytes(&[5; 32]), grant).with_member(true);
    ledger.admit(request, start()).unwrap();
}

/// The server that leaves knows the secret from which all keys of pairs are derived.
#[test]
fn another_pair_secret_is_made_when_a_server_leaves_and_at_no_other_time() {
    let (server, mut ledger) = (Server::new(), ledger());
    let mut issuer = server.issuer(start());
    let mut issue = |ledger: &Ledger<MemoryStore>, seconds: u64| {
        issuer.changed();
        let roster = issuer.issue(&settings(), ledger, at(Duration::from_secs(seconds))).unwrap();
        assert_eq!(roster.settings().pair_secret, Some(issuer.pairs().id()), "the roster names it");
        issuer.pairs().clone()
    };
    server_lease(&mut ledger, 1);
    join(&mut ledger, 2, "laptop", start());
    let first = issue(&ledger, 0);
    server_lease(&mut ledger, 3);
    assert_eq!(issue(&ledger, 10).id(), first.id(), "another server came");
    ledger.remove(&key(2), at(HOUR)).unwrap();
    assert_eq!(issue(&ledger, 20).id(), first.id(), "a machine left that was no server");
    ledger.remove(&key(1), at(HOUR)).unwrap();
    let second = issue(&ledger, 30);
    assert_ne!(second.id(), first.id());
    let stored = server.folder.read_secret(files::PAIRS).unwrap().unwrap();
    assert_eq!(
        std::str::from_utf8(&stored).unwrap().trim_end(),
        &**rustguard_device::key::to_base64(second.as_bytes())
    );
    join(&mut ledger, 4, "tablet", start());
    assert_eq!(issue(&ledger, 40).id(), second.id(), "once");
}

/// A machine with another key is still the same machine: it keeps its name, a further server stays a server, and the
/// old key is in the roster while the ledger keeps it.
#[test]
fn a_machine_with_another_key_keeps_its_name_and_its_role() {
    let (server, mut ledger) = (Server::new(), ledger());
    for (number, is_server) in [(1, false), (2, true)] {
        let grant = Grant::Admin(Terms::default().with_server(is_server));
        let request = Request::new(key(number), PresharedKey::from_bytes(&[5; 32]), grant).with_member(true);
        ledger.admit(request.with_name("box".to_owned()), start()).unwrap();
    }
    let mut issuer = server.issuer(start());
    let before = issuer.issue(&settings(), &ledger, start()).unwrap();
    let names: Vec<_> = [1, 2].map(|number| before.member(&key(number)).unwrap().name.clone()).into();
    for number in 1..=2 {
        ledger.rotate(&key(number), key(number + 10), at(HOUR)).unwrap();
    }
    issuer.changed();
    let after = issuer.issue(&settings(), &ledger, at(HOUR)).unwrap();
    for (number, name) in [(1, &names[0]), (2, &names[1])] {
        let member = after.member(&key(number + 10)).unwrap();
        assert_eq!((&member.name, member.old_key), (name, Some(key(number))));
        assert_eq!(member.addresses, before.member(&key(number)).unwrap().addresses);
    }
    assert_eq!(after.settings().pair_secret, before.settings().pair_secret, "no server was lost");
    // The same holds after a restart between the ledger's commit and the roster.
    ledger.rotate(&key(11), key(21), at(2 * HOUR)).unwrap();
    let after = server.issuer(at(2 * HOUR)).issue(&settings(), &ledger, at(2 * HOUR)).unwrap();
    assert_eq!(after.member(&key(21)).unwrap().name, names[0]);
    ledger.expire(at(30 * HOUR)).unwrap();
    let mut issuer = server.issuer(at(30 * HOUR));
    let after = issuer.issue(&settings(), &ledger, at(30 * HOUR)).unwrap();
    assert!(after.members().all(|member| member.old_key.is_none()));
}

/// The server's own key changes. The roster has both keys while both are accepted, also after a restart before the
/// roster. Nothing else changes.
#[test]
fn a_server_with_another_key_keeps_its_name_and_its_place() {
    const NEW: PublicKey = PublicKey([2; 32]);
    let (server, mut ledger) = (Server::new(), ledger());
    join(&mut ledger, 1, "laptop", start());
    let before = server.issuer(start()).issue(&settings(), &ledger, start()).unwrap();
    let homeless = Settings { endpoint: Some("no endpoint".to_owned()), ..settings() };
    let mut issuer = server.issuer_with((NEW, Some(SERVER)), at(HOUR));
    assert_eq!(issuer.own_entry(&before).map(|own| own.public_key), Some(SERVER));
    let both = issuer.issue(&homeless, &ledger, at(HOUR)).unwrap();
    let [mut old, own] = [before.member(&SERVER), both.member(&NEW)].map(|own| Member::clone(own.unwrap()));
    (old.public_key, old.old_key) = (NEW, Some(SERVER));
    assert_eq!(own, old);
    assert!(both.member(&SERVER).is_none());
    assert_eq!(both.member(&key(1)).unwrap().role, Role::Client(NEW));
    assert_eq!(both.settings().pair_secret, before.settings().pair_secret, "no server was lost");
    // A members' roster from before the change does not make this server an older copy.
    let secret = NetworkSecret::from_bytes(&[9; 32]);
    let (issued, members) = (before.issued(), before.members().cloned());
    issuer.heard(&Roster::issue(&secret, 9, issued, before.settings().clone(), members).unwrap());
    assert_eq!(number(issuer.issue(&homeless, &ledger, at(HOUR + QUIET))), Some(10));
    issuer.set_keys(NEW, None);
    let alone = issuer.issue(&homeless, &ledger, at(HOUR * 2)).unwrap();
    assert_eq!(alone.member(&NEW).unwrap().old_key, None);
    assert_eq!(alone.member(&NEW).unwrap().name, own.name);
}

/// The first list of a standby that has taken the server's place begins the next term. Later lists stay in this term,
/// also after a restart.
#[test]
fn a_standby_that_takes_the_place_begins_a_term_once() {
    let (server, mut ledger) = (Server::new(), ledger());
    let standby = Terms::default().with_server(ServerRole::Standby);
    let request = Request::new(key(9), PresharedKey::from_bytes(&[5; 32]), Grant::Admin(standby));
    ledger.admit(request.with_member(true), start()).unwrap();
    let mut issuer = server.issuer(start());
    let last = issuer.issue(&settings(), &ledger, start()).unwrap();
    assert_eq!((last.version().number, last.version().term()), (1, 0));
    let pairs = last.settings().pair_secret;

    // On the former standby, which is the server now and has no lease.
    ledger.remove(&key(9), start()).unwrap();
    let mut successor = server.issuer(at(HOUR / 2)).succeeding(key(9));
    let first = successor.issue(&settings(), &ledger, at(HOUR / 2)).unwrap();
    assert_eq!(first.version().to_string(), "1.2");
    assert_eq!(first.settings().pair_secret, pairs, "it knew the secret of the pairs, and still may");
    let mut again = server.issuer(at(HOUR)).succeeding(key(9));
    join(&mut ledger, 1, "laptop", at(HOUR));
    assert_eq!(again.issue(&settings(), &ledger, at(HOUR)).unwrap().version().to_string(), "1.3");

    // Meanwhile the former server continues, until it hears of the take-over.
    issuer.changed();
    assert_eq!(issuer.issue(&settings(), &ledger, at(HOUR * 2)).unwrap().version().to_string(), "2");
    assert!(issuer.replaced().is_none());
    issuer.heard(&first);
    let replaced = issuer.replaced().expect("another machine has taken the place").to_string();
    assert!(replaced.contains("the list 1.2") && replaced.contains("--standby"), "{replaced}");
    issuer.changed();
    assert!(issuer.issue(&settings(), &ledger, at(HOUR * 4)).is_none(), "it signs nothing");
    assert_eq!(Replaced::load(&server.folder).unwrap().expect("for the next start").to_string(), replaced);
}

/// If both servers are gone, a backup from before the take-over may be the only state left. It is restored on another
/// machine, and adopts the list.
#[test]
fn a_restored_backup_adopts_a_list_of_a_later_term() {
    let (server, ledger) = (Server::new(), ledger());
    server.folder.replace(files::RESTORED, b"1\n").unwrap();
    let mut issuer = server.issuer(start());
    let secret = NetworkSecret::from_bytes(&[9; 32]);
    let own = Arc::new(Member::new(SERVER, "hub".parse().unwrap()).with_role(Role::Server));
    issuer.heard(&Roster::issue(&secret, next_term(40), 5, settings().to_roster("rg0"), [own]).unwrap());
    assert!(issuer.replaced().is_none());
    assert!(issuer.newest(&settings(), &ledger).is_ok());
    issuer.adopted();
    assert_eq!(issuer.issue(&settings(), &ledger, at(HOUR)).unwrap().version().to_string(), "1.41");
}

/// A list of the same term does not come from a machine that has taken the place: it is adopted or discarded.
#[test]
fn a_list_of_the_same_term_replaces_nobody() {
    let (server, ledger) = (Server::new(), ledger());
    let mut issuer = server.issuer(start());
    issuer.issue(&settings(), &ledger, start()).unwrap();
    let secret = NetworkSecret::from_bytes(&[9; 32]);
    let theirs = Roster::issue(&secret, 1 << 39, 5, settings().to_roster("rg0"), []).unwrap();
    issuer.heard(&theirs);
    assert!(issuer.replaced().is_none());
    let foreign = NetworkSecret::from_bytes(&[8; 32]);
    issuer.heard(&Roster::issue(&foreign, 1 << 41, 5, settings().to_roster("rg0"), []).unwrap());
    assert!(issuer.replaced().is_none(), "another network is none of its matters");
}
