//! A server whose state is older than the newest list that members have.
use super::*;
use rustguard_enroll::ledger::List;

/// A ledger with members, as it was when the backup was made.
fn backup() -> Ledger<MemoryStore> {
    let mut ledger = ledger();
    for (number, name) in [(1, "laptop"), (2, "stolen"), (3, "desk"), (4, "laptop"), (5, "gateway")] {
        member(&mut ledger, number, name, Terms::default(), start());
    }
    join(&mut ledger, 6, "phone", start());
    ledger
}

fn member(ledger: &mut Ledger<MemoryStore>, number: u32, name: &str, terms: Terms, now: Now) {
    let psk = PresharedKey::from_bytes(&[u8::try_from(number).unwrap(); 32]);
    let request = Request::new(key(number), psk, Grant::Admin(terms)).with_member(true);
    ledger.admit(request.with_name(name.to_owned()), now).unwrap();
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The server with the backup, which has heard of the roster that was issued after `changes`.
fn heard(
    server: &Server,
    since: Duration,
    changes: impl FnOnce(&mut Issuer, &mut Ledger<MemoryStore>),
) -> (Issuer, Arc<Roster>) {
    let mut now_there = backup();
    let mut issuer = server.issuer(start());
    issuer.issue(&settings(), &now_there, start()).unwrap();
    let roster = fs::read(server.folder.path(ROSTER)).unwrap();
    changes(&mut issuer, &mut now_there);
    now_there.expire(at(since)).unwrap();
    issuer.changed();
    let theirs = issuer.issue(&settings(), &now_there, at(since)).unwrap();
    server.folder.replace(ROSTER, &roster).unwrap();
    server.folder.replace(files::RESTORED, b"7\n").unwrap();
    let mut issuer = server.issuer(at(since + HOUR));
    issuer.heard(&theirs);
    (issuer, theirs)
}

/// Adopts the newest list, and issues the next roster.
fn adopt(issuer: &mut Issuer, ledger: &mut Ledger<MemoryStore>, now: Now) -> Arc<Roster> {
    let list = issuer.newest(&settings(), ledger).unwrap().list;
    issuer.before_adoption().unwrap();
    ledger.adopt(&list, now).unwrap();
    issuer.adopted();
    issuer.issue(&settings(), ledger, now).unwrap()
}

/// The members of a roster, without the mark of lost preshared keys, which no earlier roster can have.
fn members(roster: &Roster) -> Vec<String> {
    let lost = format!("(11, {:?})", SERVER.0);
    roster.members().map(|member| format!("{member:?}").replace(&lost, "")).collect()
}

#[test]
fn the_next_roster_is_the_newest_one_with_its_keys_and_names() {
    let (server, now) = (Server::new(), at(HOUR * 3));
    let (mut issuer, theirs) = heard(&server, HOUR, |issuer, ledger| {
        let site = Terms::default().with_server(true).with_admitted(vec![net("10.9.0.0/16")]);
        member(ledger, 7, "late", Terms::default(), at(QUIET));
        member(ledger, 8, "site", site, at(QUIET));
        ledger.remove(&key(2), at(QUIET)).unwrap();
        ledger.rotate(&key(4), key(44), at(QUIET)).unwrap();
        ledger.rename(&key(3), "bureau", at(QUIET)).unwrap();
        issuer.renamed(&key(3));
        ledger.tag(&key(5), &["Site".to_owned()], at(QUIET)).unwrap();
        ledger.allow(&key(6), &[net("192.168.6.0/24")], false, at(QUIET)).unwrap();
    });
    let mut ledger = backup();
    // Meanwhile a machine has joined the restored server, with the name of another machine in the list.
    join(&mut ledger, 9, "site", now);
    let address = ledger.lease(&key(9)).unwrap().addresses().next().unwrap();
    assert!(theirs.members().any(|member| member.addresses.contains(&address)), "it has the address of a newer one");
    assert!(issuer.issue(&settings(), &ledger, now).is_none());
    let failure = issuer.failure().unwrap();
    for words in [
        "does not have late, site, and it still has stolen, removed since,",
        "it does not have the present keys of laptop, and",
        "other names, tags, prefixes, addresses or roles of",
        "rustguard reload rg0 --adopt",
        "rustguard reload rg0 --restored",
    ] {
        // The machines of a message are in the order of their keys.
        let sorted = |text: &str| text.replace("site, late", "late, site");
        assert!(sorted(failure).contains(words), "{failure}");
    }
    let list = issuer.newest(&settings(), &ledger).unwrap().list;
    assert!(failure.contains("cannot be taken over yet: the list gives"), "{failure}");
    let error = ledger.adopt(&list, now).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("has joined since"), "{error}");
    ledger.remove(&key(9), now).unwrap();
    let next = adopt(&mut issuer, &mut ledger, now);
    assert_eq!(next.version().number, theirs.version().number + 1);
    assert_eq!(members(&next), members(&theirs));
    let [late, laptop] = [7, 44].map(|number| next.member(&key(number)).unwrap().without_psk());
    assert_eq!((late, laptop), (Some(SERVER), None));
    assert_eq!(ledger.lease(&key(44)).unwrap().preshared_key.as_bytes(), &[4; 32]);
    assert_eq!(next.member(&key(44)).unwrap().name.as_str(), "laptop-2");
    assert!(!issuer.waits() && issuer.failure().is_none());
    let why = issuer.newest(&settings(), &ledger).map(drop).unwrap_err();
    assert!(why.contains("nothing to adopt"), "{why}");
    // A restart continues from there, and more machines join.
    join(&mut ledger, 9, "site", at(HOUR * 4));
    let mut issuer = server.issuer(at(HOUR * 4));
    let more = issuer.issue(&settings(), &ledger, at(HOUR * 4)).unwrap();
    assert_eq!(
        (more.members().len(), more.member(&key(9)).unwrap().name.as_str()),
        (theirs.members().len() + 1, "site-2")
    );
    // A machine that joins again has a preshared key again.
    ledger.set_preshared_key(&key(7), PresharedKey::from_bytes(&[7; 32]), at(HOUR * 5)).unwrap();
    issuer.changed();
    let again = issuer.issue(&settings(), &ledger, at(HOUR * 5)).unwrap();
    assert_eq!(again.member(&key(7)).unwrap().without_psk(), None);
}

/// After a day, no list has a machine's old key any more. A machine in the backup with the same name and addresses is
/// the same machine.
#[test]
fn a_machine_that_has_changed_its_key_long_ago_is_known_by_its_name_and_its_addresses() {
    let (server, now) = (Server::new(), at(HOUR * 60));
    let changes = |issuer: &mut Issuer, ledger: &mut Ledger<MemoryStore>| {
        ledger.rotate(&key(4), key(44), at(QUIET)).unwrap();
        ledger.rotate(&key(3), key(33), at(QUIET)).unwrap();
        ledger.rename(&key(33), "bureau", at(QUIET)).unwrap();
        issuer.renamed(&key(33));
    };
    let (mut issuer, theirs) = heard(&server, HOUR * 50, changes);
    assert_eq!(theirs.member(&key(44)).unwrap().old_key, None);
    let mut ledger = backup();
    let next = adopt(&mut issuer, &mut ledger, now);
    assert_eq!(members(&next), members(&theirs));
    assert_eq!(ledger.lease(&key(44)).unwrap().preshared_key.as_bytes(), &[4; 32]);
    assert!(
        ledger.lease(&key(33)).unwrap().preshared_key.is_zero(),
        "the one of that name is gone, as far as anybody knows"
    );
    assert!(ledger.lease(&key(3)).is_none());
}

/// Changes of names, tags and prefixes since the backup are not lost without a decision either. If nothing differs, no
/// decision is needed.
#[test]
fn a_backup_that_differs_in_names_alone_waits_as_well() {
    let server = Server::new();
    let rename = |issuer: &mut Issuer, ledger: &mut Ledger<MemoryStore>| {
        ledger.rename(&key(3), "bureau", at(QUIET)).unwrap();
        issuer.renamed(&key(3));
    };
    let (mut issuer, _) = heard(&server, HOUR, rename);
    assert!(issuer.issue(&settings(), &backup(), at(HOUR * 2)).is_none());
    let words =
        "roles of desk. To take over what the list says: rustguard reload rg0 --adopt (--dry-run shows it before)";
    assert!(issuer.failure().unwrap().contains(words), "{:?}", issuer.failure());
    let mut ledger = backup();
    let next = adopt(&mut issuer, &mut ledger, at(HOUR * 2));
    assert_eq!(next.member(&key(3)).unwrap().name.as_str(), "bureau");
    assert_eq!(ledger.lease(&key(3)).unwrap().name.as_deref(), Some("bureau"));

    let server = Server::new();
    let (mut issuer, theirs) = heard(&server, HOUR * 2, |_, _| {});
    let next = issuer.issue(&settings(), &backup(), at(HOUR * 4)).unwrap();
    assert_eq!((next.version().number, members(&next)), (theirs.version().number + 1, members(&theirs)));
}

#[test]
fn nothing_is_adopted_before_a_member_has_spoken_and_from_no_list_of_another_key() {
    let server = Server::new();
    let mut issuer = server.issuer(start());
    let ledger = backup();
    issuer.issue(&settings(), &ledger, start()).unwrap();
    server.folder.replace(files::RESTORED, b"7\n").unwrap();
    let mut issuer = server.issuer(at(HOUR));
    let why = issuer.newest(&settings(), &ledger).map(drop).unwrap_err();
    assert!(why.contains("no member has told yet") && why.contains("reload rg0 --restored"), "{why}");
    // The key of the server was changed after the backup.
    let last = issuer.last().unwrap();
    let own = Member::new(PublicKey([2; 32]), "hub".parse().unwrap()).with_role(Role::Server).with_old_key(SERVER);
    let members = last.members().filter(|member| matches!(member.role, Role::Member)).cloned().chain([Arc::new(own)]);
    let theirs = Roster::issue(&issuer.secret, 9, last.issued(), last.settings().clone(), members).unwrap();
    issuer.heard(&theirs);
    let why = issuer.newest(&settings(), &ledger).map(drop).unwrap_err();
    assert!(why.contains("does not know this server by its key") && why.contains("Restore a newer backup"), "{why}");
    assert!(issuer.issue(&settings(), &ledger, at(HOUR * 2)).is_none());
    assert!(issuer.failure().unwrap().contains("does not know this server by its key"), "{:?}", issuer.failure());
}

/// The administrator may adopt the list, and gets a warning.
#[test]
fn the_list_of_a_server_that_runs_beside_is_adopted_with_a_warning() {
    let (server, mut ledger) = (Server::new(), backup());
    let mut issuer = server.issuer(start());
    let last = issuer.issue(&settings(), &ledger, start()).unwrap();
    let theirs = last.members().filter(|member| member.public_key != key(2)).cloned();
    let theirs = Roster::issue(&issuer.secret, 9, at(QUIET).unix.as_secs(), last.settings().clone(), theirs).unwrap();
    issuer.heard(&theirs);
    assert!(issuer.issue(&settings(), &ledger, at(HOUR)).is_none());
    let failure = issuer.failure().unwrap();
    assert!(
        ["another server has a copy", "--adopt", "--restored"].iter().all(|words| failure.contains(words)),
        "{failure}"
    );
    let warnings = issuer.newest(&settings(), &ledger).unwrap().warnings;
    assert!(matches!(&*warnings, [one] if one.contains("another server has a copy")), "{warnings:?}");
    assert_eq!(adopt(&mut issuer, &mut ledger, at(HOUR)).members().len(), theirs.members().len());
}

/// The new server's machine has another host name. Its name in the network is the name in the list, until the host is
/// renamed.
#[test]
fn the_server_is_called_what_the_list_calls_it() {
    let (server, mut ledger) = (Server::new(), backup());
    let mut issuer = server.issuer_on("box", start());
    let last = issuer.issue(&settings(), &ledger, start()).unwrap();
    let theirs = last.members().map(|member| match member.public_key {
        SERVER => Arc::new(Member::clone(member).with_name("hub".parse().unwrap())),
        _ => Arc::clone(member),
    });
    let homeless = Settings { endpoint: Some("no endpoint".to_owned()), ..settings() };
    issuer.heard(&Roster::issue(&issuer.secret, 9, last.issued(), last.settings().clone(), theirs).unwrap());
    assert_eq!(issuer.newest(&settings(), &ledger).unwrap().own_name, Some(("box".to_owned(), "hub".to_owned())));
    let next = adopt(&mut issuer, &mut ledger, at(HOUR));
    assert_eq!(next.member(&SERVER).unwrap().name.as_str(), "hub");
    let name = |host: &str, hours: u32| {
        let mut issuer = server.issuer_on(host, at(HOUR * hours));
        issuer.issue(&homeless, &backup(), at(HOUR * hours)).unwrap().member(&SERVER).unwrap().name.to_string()
    };
    assert_eq!([name("box", 2), name("other", 4)], ["hub", "other"]);
}

/// A list is made from a roster, and a roster from a list. If nothing has changed, both are the same again.
#[test]
fn a_list_that_is_adopted_once_changes_nothing_again() {
    let server = Server::new();
    let (mut issuer, theirs) = heard(&server, HOUR, |_, ledger| {
        member(ledger, 7, "late", Terms::default(), at(QUIET));
        ledger.rotate(&key(4), key(44), at(QUIET)).unwrap();
    });
    let mut ledger = backup();
    adopt(&mut issuer, &mut ledger, at(HOUR * 2));
    issuer.theirs = Some(Roster::clone(&theirs));
    let list: List = issuer.newest(&settings(), &ledger).unwrap().list;
    assert!(ledger.adoption(&list, at(HOUR * 3)).unwrap().is_empty());
}

/// A list contains neither the policy file nor settings.json. Before the adoption, the administrator is told what
/// members will do differently after it.
#[test]
fn a_policy_and_settings_that_do_not_come_back_are_said_before() {
    let server = Server::new();
    let (now, later) = ("allow laptop -> desk", "allow laptop -> desk tcp/22");
    let mut issuer = server.issuer(start());
    issuer.set_policy(policy(later));
    let elsewhere = Settings { dns: vec!["10.0.0.53".parse().unwrap()], ..settings() };
    let theirs = issuer.issue(&elsewhere, &backup(), at(HOUR)).unwrap();
    server.folder.replace(files::RESTORED, b"7\n").unwrap();
    let warnings = |said: Option<&str>, settings: &Settings| {
        let mut issuer = server.issuer(at(HOUR * 2));
        issuer.set_policy(said.and_then(policy));
        issuer.theirs = Some(Roster::clone(&theirs));
        issuer.newest(settings, &backup()).unwrap().warnings
    };
    assert_eq!(warnings(Some(later), &elsewhere), [""; 0]);
    for (said, words) in [(Some(now), "another version of /etc/rustguard/rg0.policy"), (None, "everything is allowed")]
    {
        let warnings = warnings(said, &elsewhere);
        assert!(matches!(&*warnings, [one] if one.contains(words)), "{warnings:?}");
    }
    let warnings = warnings(Some(later), &settings());
    assert!(matches!(&*warnings, [one] if one.contains("name servers 10.0.0.53 (here none)")), "{warnings:?}");
}
