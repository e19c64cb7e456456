//! Joiners that do not follow the protocol. These tests need access to private items.
use super::*;
use crate::{
    invite,
    lease::{PresharedKey, Terms},
    ledger::{Grant, List, Listed, Policy, Refusal, Request},
    limits::Source,
    pake,
    payload::{Greeting, Joiner},
    pool::Pools,
    schedule::{Keys, open, seal},
    server::session::{Stage, Via},
    store::{Change, MemoryStore},
    token::{Invite, Passphrase},
    wire::{self, CLAIM, PROOF},
};
use rand::{SeedableRng as _, rngs::StdRng};
use rustguard_core::{cookie::Checker, tai64n::Timestamp};

struct Lab {
    server: Server<MemoryStore>,
    rng: StdRng,
    now: Now,
    from: SocketAddr,
}

impl Lab {
    fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let now = Now { instant: Instant::from_nanos(1 << 40), unix: Duration::from_secs(1_700_000_000) };
        let pools = Pools::new(&["10.150.0.0/24".parse().expect("a prefix")]).expect("a pool");
        let ledger = Ledger::open(MemoryStore::default(), pools, Policy::default(), now).expect("an empty store");
        let identity = StaticSecret::from_bytes([9; 32]);
        let server = Server::new(identity, ledger, &ServerConfig::default(), now, &mut rng).expect("short");
        Self { server, rng, now, from: "192.0.2.7:7".parse().expect("an address") }
    }

    fn invite(&mut self) -> Invite {
        let made = self.server.new_invite(InviteOptions::default(), self.now, &mut self.rng, &mut Vec::new());
        made.expect("an invite")
    }

    fn handle(&mut self, datagram: &[u8]) -> (Vec<Vec<u8>>, Vec<Reason>) {
        let mut actions = Vec::new();
        self.server.handle(self.from, datagram, self.now, &mut self.rng, &mut actions);
        let (mut sent, mut refused) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Send { bytes, .. } => sent.push(bytes),
                Action::Audit(record) if record.event == AuditEvent::Refused => refused.extend(record.reason),
                Action::Audit(_) => {}
                Action::SetPeer(_) | Action::RekeyPeer { .. } | Action::RemovePeer(_) | Action::MembersChanged => {
                    panic!("nobody gets in here")
                }
            }
        }
        (sent, refused)
    }

    /// The first exchange of an invite, on behalf of `public_key`.
    fn greeted(&mut self, invite: &Invite, public_key: PublicKey) -> Option<(Keys, Index)> {
        self.greeted_as(invite, public_key, &StaticSecret::from_bytes([66; 32]))
    }

    /// The same, on behalf of the machine with the private key `identity`.
    fn greeted_as(&mut self, invite: &Invite, public_key: PublicKey, identity: &StaticSecret) -> Option<(Keys, Index)> {
        let joiner = Joiner { public_key, name: None, ephemeral: false, member: false };
        let stamp = Timestamp::of(self.now.unix);
        let initiated = invite::initiate(invite, identity, &joiner, stamp, &mut self.rng).expect("honest keys");
        let mut datagram = initiated.message.clone();
        rustguard_core::cookie::Maker::new(&invite::LABELS, invite.server()).sign(&mut datagram, self.now.instant);
        let (answers, _) = self.handle(&datagram);
        let answer = answers.first()?;
        let Some(Message::Response(response)) = Message::parse(answer) else { panic!("a response") };
        let Ok((keys, _, Some(Greeting::Settings(..)))) = initiated.finish(&response, answer) else {
            panic!("authentic")
        };
        Some((keys, response.session))
    }
}

fn claim(session: &Index, key: &[u8; 32], kem_key: &[u8; 1184]) -> Vec<u8> {
    let mut message = wire::build(CLAIM, &[session]);
    seal(key, 0, &mut message, kem_key);
    message
}

#[test]
fn who_has_not_the_private_key_of_the_public_key_it_names_gets_nothing() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    let victim = StaticSecret::from_bytes([5; 32]).public_key();
    let (keys, session) = lab.greeted(&invite, victim).expect("the invite is good");
    let (_, kem_key) = Kem::default().generate(&mut lab.rng);
    // The attacker uses its own key in place of the victim's.
    let own = StaticSecret::from_bytes([6; 32]);
    let wrong = keys.claim(&own, invite.server()).expect("honest keys");
    assert_eq!(lab.handle(&claim(&session, wrong.key(), &kem_key)), (vec![], vec![Reason::NoProof]));
    assert_eq!(lab.server.ledger().leases().len(), 0);
}

#[test]
fn a_low_order_wireguard_key_and_the_servers_own_prove_nothing() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    let (_, session) = lab.greeted(&invite, PublicKey([0; 32])).expect("the invite is good");
    let (_, kem_key) = Kem::default().generate(&mut lab.rng);
    assert_eq!(lab.handle(&claim(&session, &[0; 32], &kem_key)), (vec![], vec![Reason::NoProof]));
    lab.now.unix += Duration::from_secs(1);
    let own = *lab.server.public_key();
    assert!(lab.greeted(&invite, own).is_none());
}

#[test]
fn a_key_that_is_no_ml_kem_key_gets_nothing() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    let node = StaticSecret::from_bytes([5; 32]);
    let (keys, session) = lab.greeted(&invite, node.public_key()).expect("the invite is good");
    let keys = keys.claim(&node, invite.server()).expect("honest keys");
    assert_eq!(lab.handle(&claim(&session, keys.key(), &[0xff; 1184])), (vec![], vec![Reason::NoProof]));
    assert_eq!(lab.server.ledger().leases().len(), 0);
}

#[test]
fn a_claim_after_its_time_gets_nothing_though_nobody_ticks() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    let node = StaticSecret::from_bytes([5; 32]);
    let (keys, session) = lab.greeted(&invite, node.public_key()).expect("the invite is good");
    let keys = keys.claim(&node, invite.server()).expect("honest keys");
    let (_, kem_key) = Kem::default().generate(&mut lab.rng);
    lab.now.instant = lab.now.instant + session::SESSION_TIME;
    assert_eq!(lab.handle(&claim(&session, keys.key(), &kem_key)), (vec![], vec![]));
}

#[test]
fn the_ledger_lets_nobody_in_by_a_window_that_is_closed() {
    let mut lab = Lab::new();
    let request = || Request {
        public_key: PublicKey([5; 32]),
        name: None,
        preshared_key: PresharedKey::from_bytes(&[1; 32]),
        ephemeral: false,
        member: false,
        grant: Grant::Window,
    };
    assert!(matches!(lab.server.ledger.admit(request(), lab.now), Err(Refusal::Closed)));
    for by_command in [true, false] {
        lab.server.open(OpenOptions::default(), lab.now, &mut lab.rng, &mut Vec::new()).expect("no other window");
        if by_command {
            assert!(lab.server.close(lab.now, &mut Vec::new()));
        } else {
            lab.now.instant = lab.now.instant + DEFAULT_WINDOW;
            lab.server.tick(lab.now, &mut Vec::new());
        }
        assert!(matches!(lab.server.ledger.admit(request(), lab.now), Err(Refusal::Closed)));
    }
}

#[test]
fn a_second_claim_of_one_session_is_not_a_second_grant() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    let node = StaticSecret::from_bytes([5; 32]);
    let (keys, session) = lab.greeted(&invite, node.public_key()).expect("the invite is good");
    let keys = keys.claim(&node, invite.server()).expect("honest keys");
    let claims = [(); 2].map(|()| {
        let (_, kem_key) = Kem::default().generate(&mut lab.rng);
        claim(&session, keys.key(), &kem_key)
    });
    let mut grants = Vec::new();
    for datagram in [&claims[0], &claims[0], &claims[1]] {
        let mut actions = Vec::new();
        lab.server.handle(lab.from, datagram, lab.now, &mut lab.rng, &mut actions);
        grants.extend(actions.into_iter().filter_map(|action| match action {
            Action::Send { bytes, .. } => Some(bytes),
            _ => None,
        }));
    }
    // The same claim gets the same grant again. A different claim gets nothing, because the key and nonce are used.
    assert_eq!(grants.len(), 2);
    assert_eq!(grants[0], grants[1]);
}

#[test]
fn who_proves_something_else_than_it_committed_to_is_refused() {
    for honest in [true, false] {
        let mut lab = Lab::new();
        let passphrase = Passphrase::new("mysecret").expect("a passphrase");
        let options = OpenOptions { passphrase: Some(passphrase.clone()), approve: true, ..OpenOptions::default() };
        lab.server.open(options, lab.now, &mut lab.rng, &mut Vec::new()).expect("no other window");
        let secret = pake::WindowSecret::Passphrase(passphrase);
        let node = StaticSecret::from_bytes([3; 32]);
        let joiner = Joiner { public_key: node.public_key(), name: None, ephemeral: false, member: false };
        let shared = pake::share(&secret, &joiner, &mut lab.rng);
        let mut maker = rustguard_core::cookie::Maker::new(&pake::LABELS, &secret.mac_key());
        let mut datagram = shared.message.clone();
        maker.sign(&mut datagram, lab.now.instant);
        let (cookie, _) = lab.handle(&datagram);
        let Some(Message::Cookie(cookie)) = Message::parse(&cookie[0]) else { panic!("a cookie") };
        assert_eq!(cookie.with_core(|reply| maker.accept(reply, lab.now.instant)), Some(true));
        maker.sign(&mut datagram, lab.now.instant);
        let (reply, _) = lab.handle(&datagram);
        let Some(Message::ShareReply(share)) = Message::parse(&reply[0]) else { panic!("a share") };
        let proving = shared.prove(&share, &reply[0]).expect("a point");
        // Another nonce would give other digits, so an attacker could choose them.
        let mut text = proving.proof_text;
        if !honest {
            text[0] ^= 1;
        }
        let mut message = wire::build(PROOF, &[&share.session]);
        seal(proving.keys.to_server(), 0, &mut message, &text);
        let (answers, refused) = lab.handle(&message);
        assert_eq!((answers.len(), refused), if honest { (1, vec![]) } else { (0, vec![Reason::Malformed]) });
        assert_eq!(lab.server.pending_approvals().len(), usize::from(honest));
        if honest {
            // The first welcome has its own counter, and so has the next one: no nonce is used twice.
            let Some(Message::Welcome(first)) = Message::parse(&answers[0]) else { panic!("a welcome") };
            assert_eq!(first.counter, 0);
            // A joiner that does not wait for approval gets nothing.
            let (_, kem_key) = Kem::default().generate(&mut lab.rng);
            let keys = proving.keys.claim(&node, lab.server.public_key()).expect("honest keys");
            assert_eq!(lab.handle(&claim(&share.session, keys.key(), &kem_key)), (vec![], vec![]));
            assert_eq!(lab.server.ledger().leases().len(), 0);
            let code = proving.keys.approval_code(&text);
            lab.server.approve(code, lab.now, &mut Vec::new()).expect("the same digits");
            let (answers, _) = lab.handle(&message);
            let Some(Message::Welcome(second)) = Message::parse(&answers[0]) else { panic!("a welcome") };
            assert_eq!(second.counter, 1);
            let keys = &proving.keys;
            assert!(open(keys.to_client(), 1, &answers[0][..20], second.text, second.tag).is_some());
        }
    }
}

#[test]
fn a_forged_proof_from_elsewhere_ends_nobodys_session() {
    let mut lab = Lab::new();
    let window = Window {
        serial: 1,
        secret: pake::WindowSecret::Passphrase(Passphrase::new("mysecret").expect("a passphrase")),
        checker: Checker::new(&pake::LABELS, &PublicKey([0; 32])),
        until: lab.now.instant + Duration::from_secs(60),
        approve: false,
        attempts_left: 0,
        joined: 0,
        asked: 0,
    };
    lab.server.window = Some(window);
    let session = session::Session {
        server: PublicKey([0; 32]),
        receiver: [1; 8],
        first: [2; 32],
        answer: Vec::new(),
        keys: Keys::from_pake(&[3; 64], b"a", b"b"),
        via: Via::Window { serial: 1, source: Source::of(lab.from.ip()), commitment: [0; 32], approve: false },
        joiner: None,
        stage: Stage::Shared,
        welcome: None,
        welcomes: 0,
        claim_keys: None,
        until: lab.now.instant + Duration::from_secs(10),
    };
    lab.server.sessions.insert([7; 8], session);
    let forged = wire::build(PROOF, &[&[7; 8], &[0; 1220]]);
    let honest = lab.from;
    lab.from = "203.0.113.1:1".parse().expect("an address");
    assert_eq!(lab.handle(&forged), (vec![], vec![]));
    assert!(lab.server.sessions.get(&[7; 8], lab.now.instant).is_some());
    assert!(lab.server.window().is_some(), "the last guess is still being made");
    lab.from = honest;
    assert_eq!(lab.handle(&forged), (vec![], vec![Reason::WrongSecret]));
    assert!(lab.server.sessions.get(&[7; 8], lab.now.instant).is_none());
    assert!(lab.server.window().is_none(), "that was the last one");
}

#[test]
fn what_the_embedder_logs_has_no_secret_in_it() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    let shown = format!("{:?} {:?}", lab.server, invite);
    assert!(shown.len() < 300, "{shown}");
    let lease = lab.server.add_peer(PublicKey([1; 32]), NewPeer::default(), lab.now, &mut lab.rng, &mut Vec::new());
    let peers: Vec<_> = lab.server.peers().collect();
    let psk = lease.expect("room").preshared_key.as_bytes().map(|byte| byte.to_string()).join(", ");
    assert!(!format!("{peers:?}").contains(&psk));
}

impl Lab {
    /// Admits the machine with this key by an invite.
    fn admit(&mut self, invite: &Invite, identity: &StaticSecret) {
        let (keys, session) = self.greeted_as(invite, identity.public_key(), identity).expect("the invite is good");
        assert!(self.claims(&keys, &session, identity), "granted");
    }

    /// Whether a claim in this session results in a lease.
    fn claims(&mut self, keys: &Keys, session: &Index, identity: &StaticSecret) -> bool {
        let keys = keys.claim(identity, self.server.public_key()).expect("honest keys");
        let (_, kem_key) = Kem::default().generate(&mut self.rng);
        let mut actions = Vec::new();
        let message = claim(session, keys.key(), &kem_key);
        self.server.handle(self.from, &message, self.now, &mut self.rng, &mut actions);
        self.server.ledger().lease(&identity.public_key()).is_some()
            && actions.iter().any(|action| matches!(action, Action::Send { .. }))
    }
}

#[test]
fn who_holds_a_used_invite_hears_nothing_whoever_it_claims_to_be() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    let (member, attacker) = (StaticSecret::from_bytes([5; 32]), StaticSecret::from_bytes([6; 32]));
    lab.admit(&invite, &member);
    // The member's public key is not secret. A holder of a used invite that names this key gets no answer.
    for named in [member.public_key(), attacker.public_key(), PublicKey([7; 32])] {
        lab.now.unix += Duration::from_secs(1);
        assert!(lab.greeted_as(&invite, named, &attacker).is_none(), "an answer for {named:?}");
    }
    // The member itself gets an answer, each time.
    lab.now.unix += Duration::from_secs(1);
    let (keys, session) = lab.greeted_as(&invite, member.public_key(), &member).expect("it came by this invite");
    assert!(lab.claims(&keys, &session, &member));
}

#[test]
fn another_holder_of_an_invite_neither_ends_a_machines_session_nor_keeps_it_from_beginning_one() {
    let mut lab = Lab::new();
    let options = InviteOptions { uses: 10, ..InviteOptions::default() };
    let invite = lab.server.new_invite(options, lab.now, &mut lab.rng, &mut Vec::new()).expect("an invite");
    let (victim, attacker) = (StaticSecret::from_bytes([5; 32]), StaticSecret::from_bytes([6; 32]));
    let at = lab.now.unix;
    // The attack comes before and after the victim's initiation, with a timestamp from the future and the victim's key.
    lab.now.unix = at + Duration::from_secs(3_600);
    assert!(lab.greeted_as(&invite, victim.public_key(), &attacker).is_some(), "the invite is good");
    lab.now.unix = at;
    let (keys, session) = lab.greeted_as(&invite, victim.public_key(), &victim).expect("the invite is good");
    lab.now.unix = at + Duration::from_secs(3_601);
    let (other, index) = lab.greeted_as(&invite, victim.public_key(), &attacker).expect("the invite is good");
    assert!(!lab.claims(&other, &index, &attacker), "by a key that it does not have");
    assert!(lab.claims(&keys, &session, &victim), "the victim's session was ended");
    // The machine's own newer initiation ends its older session: a machine has one session.
    let sessions = |lab: &Lab| lab.server.sessions.count_of_invite(&invite.id(), lab.now.instant);
    let before = sessions(&lab);
    lab.now.unix = at + Duration::from_secs(1);
    assert!(lab.greeted_as(&invite, victim.public_key(), &victim).is_some());
    assert_eq!(sessions(&lab), before);
    // An older initiation of its own is a replay.
    lab.now.unix = at;
    assert!(lab.greeted_as(&invite, victim.public_key(), &victim).is_none());
}

/// The device removes ended peers before it adds new ones, and the audit log has all of them.
#[test]
fn a_list_that_is_adopted_becomes_actions_and_lines_of_the_audit_log() {
    let mut lab = Lab::new();
    let [gone, rotated, new, came] = [1, 2, 3, 4].map(|byte| StaticSecret::from_bytes([byte; 32]).public_key());
    for key in [gone, rotated] {
        let request = Request::new(key, PresharedKey::from_bytes(&[5; 32]), Grant::Admin(Terms::default()));
        lab.server.ledger.admit(request, lab.now).unwrap();
    }
    let machine = |key, last: u8| Listed { addresses: vec![[10, 150, 0, last].into()], ..Listed::new(key) };
    let machines = vec![Listed { lease: Some(rotated), old_key: Some(rotated), ..machine(new, 3) }, machine(came, 9)];
    let list = List::new(lab.now.unix.as_secs() + 9, machines);
    let mut actions = Vec::new();
    let planned = lab.server.adoption(&list, lab.now).unwrap();
    assert_eq!(lab.server.adopt(&list, lab.now, &mut actions).unwrap(), planned);
    let (mut lines, mut rest) = (Vec::new(), Vec::new());
    for action in actions {
        match action {
            Action::Audit(record) => lines.push((record.event, record.public_key, record.reason)),
            Action::SetPeer(peer) => rest.push(format!("{} {}", peer.public_key, peer.preshared_key[0])),
            Action::RemovePeer(key) => rest.push(format!("no {key}")),
            Action::RekeyPeer { before, after } => rest.push(format!("{before} is {after}")),
            action => rest.push(format!("{action:?}")),
        }
    }
    let reason = Some(Reason::Listed);
    assert_eq!(
        lines,
        [
            (AuditEvent::Removed, Some(gone), reason),
            (AuditEvent::PeerAdded, Some(came), reason),
            (AuditEvent::KeyRotated, Some(new), reason),
            (AuditEvent::ListAdopted, None, None),
        ]
    );
    let expected = [
        format!("no {gone}"),
        format!("{rotated} is {new}"),
        format!("{new} 5"),
        format!("{came} 0"),
        "MembersChanged".to_owned(),
    ];
    assert_eq!(rest, expected);
    let own = List::new(list.made, vec![machine(*lab.server.public_key(), 20)]);
    assert!(matches!(lab.server.adopt(&own, lab.now, &mut Vec::new()), Err(ServerError::OwnKey)));
}

/// A server on a log tells nobody of a lease before the log has it, and decides again if it has not.
#[test]
fn a_claim_is_answered_when_the_log_has_the_lease() {
    let mut lab = Lab::new();
    let invite = lab.invite();
    lab.server.share(lab.now);
    let node = StaticSecret::from_bytes([5; 32]);
    let (keys, session) = lab.greeted_as(&invite, node.public_key(), &node).expect("the invite is good");
    let keys = keys.claim(&node, lab.server.public_key()).expect("honest keys");
    let (_, kem_key) = Kem::default().generate(&mut lab.rng);
    let message = claim(&session, keys.key(), &kem_key);
    let claims = |lab: &mut Lab| {
        let mut actions = Vec::new();
        lab.server.handle(lab.from, &message, lab.now, &mut lab.rng, &mut actions);
        actions.into_iter().find_map(|action| if let Action::Send { bytes, .. } = action { Some(bytes) } else { None })
    };
    // The first decision is taken back: another server was faster. Its answer was never sent.
    let withdrawn = claims(&mut lab).expect("an answer, which the caller keeps back");
    lab.server.hold();
    assert_eq!(claims(&mut lab), None, "the record is on its way");
    lab.server.revert(lab.now);
    assert_eq!((lab.server.staged().len(), lab.server.ledger().leases().len()), (0, 0));

    let granted = claims(&mut lab).expect("an answer to the second decision");
    assert_ne!(granted, withdrawn);
    lab.server.hold();
    assert_eq!(claims(&mut lab), None);
    lab.server.accept().expect("the store works");
    assert_eq!(claims(&mut lab).as_ref(), Some(&granted), "the answer was lost");
    assert_eq!(lab.server.ledger().leases().len(), 1);

    // Another server removes the machine. Its claim is not answered any more.
    lab.server.apply(vec![Change::LeaseGone(node.public_key())], None, lab.now).1.expect("the store works");
    assert_eq!(claims(&mut lab), None);

    // Without the log, nothing is decided, and the error says why.
    lab.server.set_refusal(Some("the store does not answer".to_owned()));
    let refused = lab.server.new_invite(InviteOptions::default(), lab.now, &mut lab.rng, &mut Vec::new()).unwrap_err();
    assert!(refused.to_string().contains("the store does not answer"), "{refused}");
    lab.server.set_refusal(None);
    lab.invite();
}
