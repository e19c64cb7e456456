//! Windows: time limits, guesses, approval.
use crate::sim::{Sim, seconds};
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    client::JoinError,
    server::{ApprovalCode, MAX_ASKING, MAX_WAITING, MAX_WINDOW, OpenOptions, ServerError},
    token::{Code, Passphrase},
};
use std::time::Duration;

/// Another code of the same window. Its first half is correct, because an attacker can learn it from a packet.
fn guess(code: &str, n: usize) -> String {
    const ALPHABET: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let mut found = 0;
    for last in ALPHABET.chars() {
        for check in ALPHABET.chars() {
            let text = format!("{}{check}-{}{last}", &code[..3], &code[5..8]);
            if text != code && Code::parse(&text).is_ok() {
                if found == n {
                    return text;
                }
                found += 1;
            }
        }
    }
    unreachable!("31 other symbols at the end");
}

#[test]
fn code_guessed_five_times_closes_the_window_and_says_why() {
    let mut sim = Sim::new(20);
    let code = sim.open(None, false);
    for n in 0..5 {
        assert!(sim.server.window().is_some(), "guess {n}");
        let node = sim.join(&guess(&code, n));
        assert!(sim.run(seconds(30)));
        assert_eq!(sim.failed(node), JoinError::NotAccepted);
        sim.nodes.clear();
    }
    assert!(sim.server.window().is_none());
    let closed = sim.audited(AuditEvent::WindowClosed);
    assert_eq!(closed.iter().map(|record| record.reason).collect::<Vec<_>>(), [Some(Reason::Attempts)]);
    // The correct code is too late now, and gets no answer.
    let answers = sim.answers();
    sim.join(&code);
    assert!(!sim.run(seconds(20)));
    assert_eq!(sim.answers(), answers);
    assert!(sim.peers.is_empty());
    assert!(sim.refusals().contains(&Reason::WrongSecret));
}

#[test]
fn a_share_alone_is_a_guess_too() {
    // A sender that takes the server's share and does not continue has tested a guess.
    let mut sim = Sim::new(21);
    let code = sim.open(Some("mysecret"), false);
    for n in 0..5 {
        let node = sim.join(&code);
        // Until the share was answered: first message, cookie, share, share.
        while sim.answers() < 2 * (n + 1) {
            assert!(sim.step(sim.now.instant + seconds(1)));
        }
        sim.nodes.remove(node);
        assert_eq!(sim.server.window().expect("open").attempts_left, 4 - n as u32);
        // A source with a pending guess gets no other answer.
        sim.pass(seconds(11));
    }
    assert_eq!(sim.server.window(), None);
}

#[test]
fn an_honest_joiner_on_the_fifth_attempt_gets_in() {
    let mut sim = Sim::new(22);
    let code = sim.open(None, false);
    for n in 0..4 {
        sim.join(&guess(&code, n));
    }
    assert!(sim.run(seconds(30)));
    assert_eq!(sim.server.window().expect("open").attempts_left, 1);
    sim.nodes.clear();
    let node = sim.join(&code);
    assert!(sim.run(seconds(5)));
    sim.check(node);
    assert_eq!(sim.server.window().expect("open").attempts_left, 1, "given back");
}

#[test]
fn one_guess_at_a_time_per_source() {
    let mut sim = Sim::new(23);
    let code = sim.open(None, false);
    let address = |port: u16| std::net::SocketAddr::from(([203, 0, 113, 9], port));
    // Both are honest and share one address, so they take turns.
    let first = sim.join_from(&code, [1; 32], address(1), 0);
    let second = sim.join_from(&code, [2; 32], address(2), 0);
    let mut least = 5;
    while !sim.is_done() {
        assert!(sim.step(sim.now.instant + seconds(10)));
        least = least.min(sim.server.window().expect("open").attempts_left);
    }
    assert_eq!(least, 4, "never two at once");
    sim.check(first);
    sim.check(second);
}

#[test]
fn a_wrong_window_hears_nothing() {
    let mut sim = Sim::new(24);
    let code = sim.open(None, false);
    let mut other = Code::generate(&mut sim.rng).to_text().to_string();
    while other[..3] == code[..3] {
        other = Code::generate(&mut sim.rng).to_text().to_string();
    }
    sim.join(&other);
    sim.join("a passphrase");
    assert!(!sim.run(seconds(30)));
    assert_eq!(sim.answers(), 0);
}

#[test]
fn window_closed_is_silent_by_time_by_command_and_after_a_restart() {
    for how in 0..3 {
        let mut sim = Sim::new(25);
        let code = sim.open(None, false);
        match how {
            0 => sim.pass(seconds(61)),
            1 => assert!(sim.admin(|server, now, _, actions| server.close(now, actions))),
            _ => sim.restart_server(),
        }
        assert_eq!(sim.server.window(), None);
        sim.join(&code);
        assert!(!sim.run(seconds(20)));
        assert_eq!(sim.answers(), 0);
        let reasons: Vec<_> = sim.audited(AuditEvent::WindowClosed).iter().map(|record| record.reason).collect();
        assert_eq!(reasons, [&[Some(Reason::Time)][..], &[Some(Reason::Command)], &[]][how]);
        assert!(!sim.admin(|server, now, _, actions| server.close(now, actions)), "nothing to close");
    }
}

#[test]
fn a_window_closes_on_time_though_nobody_ticks() {
    let mut sim = Sim::new(26);
    let code = sim.open(None, false);
    let node = sim.join(&code);
    let message = sim.nodes[node].client.poll(sim.now, &mut sim.rng).expect("alive").expect("a share");
    let from = sim.nodes[node].address;
    assert_eq!(sim.ask(from, &message).len(), 1, "a cookie");
    sim.now.instant = sim.now.instant + seconds(60);
    assert!(sim.ask(from, &message).is_empty());
}

#[test]
fn a_guess_under_way_ends_with_its_window() {
    let mut sim = Sim::new(33);
    let options = OpenOptions::default().with_duration(seconds(1));
    let opened = sim.admin(|server, now, rng, actions| server.open(options, now, rng, actions).expect("closed"));
    let code = opened.code.expect("a code").to_text().to_string();
    sim.pass(Duration::from_millis(900));
    sim.delay = 1;
    sim.join(&code);
    while sim.answers() < 2 {
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    // The share was sent. The proof arrives after the end of the window.
    sim.loss = 100;
    sim.pass(Duration::from_millis(100));
    assert_eq!(sim.server.window(), None);
    sim.loss = 0;
    assert!(sim.run(seconds(30)));
    assert_eq!((sim.answers(), sim.failed(0)), (2, JoinError::NotAccepted));
}

#[test]
fn windows_are_one_at_a_time_and_of_bounded_length() {
    let mut sim = Sim::new(27);
    for duration in [seconds(0), MAX_WINDOW + seconds(1)] {
        let options = OpenOptions::default().with_duration(duration);
        let opened = sim.admin(|server, now, rng, actions| server.open(options, now, rng, actions).map(drop));
        assert!(matches!(opened, Err(ServerError::WindowDuration)));
    }
    sim.open(None, false);
    let again = OpenOptions::default();
    let opened = sim.admin(|server, now, rng, actions| server.open(again, now, rng, actions).map(drop));
    assert!(matches!(opened, Err(ServerError::WindowOpen)));
    sim.pass(seconds(60));
    sim.open(None, false);
}

#[test]
fn who_proved_the_code_in_time_may_finish_after_the_window() {
    let mut sim = Sim::new(28);
    let code = sim.open(None, true);
    let node = sim.join(&code);
    while sim.server.pending_approvals().is_empty() {
        assert!(sim.step(sim.now.instant + seconds(1)));
    }
    sim.pass(seconds(70));
    assert_eq!(sim.server.window(), None);
    let waiting = sim.server.pending_approvals();
    sim.admin(|server, now, _, actions| server.approve(waiting[0].code, now, actions).expect("it waits"));
    assert!(sim.run(seconds(10)));
    sim.check(node);
    sim.pass(seconds(40));
    // The ledger's window is closed by now too, so a late claim is no longer possible.
    sim.restart_client(node, &code);
    assert!(!sim.run(seconds(20)));
}

#[test]
fn approval_shows_both_sides_the_same_eight_digits_and_admits_one() {
    let mut sim = Sim::new(29);
    let code = sim.open(None, true);
    let nodes = [sim.join(&code), sim.join(&code)];
    sim.pass(seconds(10));
    let pending = sim.server.pending_approvals();
    assert_eq!(pending.len(), 2);
    for node in nodes {
        let shown = sim.nodes[node].waiting.expect("told to wait");
        let entry = pending.iter().find(|entry| entry.code == shown).expect("the same digits");
        assert_eq!((entry.public_key, entry.source), (sim.public_key(node), sim.nodes[node].address));
        assert_eq!(ApprovalCode::parse(&shown.to_string()), Some(shown));
        assert_eq!(shown.to_string().len(), 8);
    }
    assert!(sim.server.ledger().leases().len() == 0, "nothing before it is approved");
    let shown = sim.nodes[1].waiting.expect("told to wait");
    sim.admin(|server, now, _, actions| server.approve(shown, now, actions).expect("it waits"));
    sim.pass(seconds(10));
    sim.check(1);
    assert!(sim.nodes[0].outcome.is_none());
    let again = sim.admin(|server, now, _, actions| server.approve(shown, now, actions));
    assert!(matches!(again, Err(ServerError::NobodyWaits(_))));
    // The other joiner is told when the time for approval ends.
    sim.pass(seconds(310));
    assert_eq!(sim.failed(0), JoinError::NotApproved);
    assert_eq!(sim.audited(AuditEvent::Approved).len(), 1);
    assert_eq!(sim.audited(AuditEvent::ApprovalWanted).len(), 2);
}

#[test]
fn one_of_two_who_wait_can_be_refused_and_asks_again() {
    let mut sim = Sim::new(291);
    let code = sim.open(None, true);
    let nodes = [sim.join(&code), sim.join(&code)];
    sim.pass(seconds(10));
    let shown = nodes.map(|node| sim.nodes[node].waiting.expect("told to wait"));
    sim.admin(|server, now, _, actions| server.refuse(shown[0], now, actions).expect("it waits"));
    let again = sim.admin(|server, now, _, actions| server.refuse(shown[0], now, actions));
    assert!(matches!(again, Err(ServerError::NobodyWaits(_))));
    sim.pass(seconds(10));
    assert_eq!(sim.failed(nodes[0]), JoinError::NotApproved);
    assert!(sim.nodes[nodes[1]].outcome.is_none(), "the other one still waits");
    let refused = sim.audited(AuditEvent::ApprovalRefused);
    assert!(refused.len() == 1 && refused[0].public_key == Some(sim.public_key(nodes[0])), "{refused:?}");
    sim.restart_client(nodes[0], &code);
    sim.pass(seconds(10));
    assert_eq!(sim.server.pending_approvals().len(), 2);
}

#[test]
fn closing_turns_those_away_who_wait() {
    let mut sim = Sim::new(30);
    let code = sim.open(None, true);
    let node = sim.join(&code);
    sim.pass(seconds(5));
    assert!(sim.admin(|server, now, _, actions| server.close(now, actions)));
    assert!(sim.server.pending_approvals().is_empty());
    assert!(sim.run(seconds(5)));
    assert_eq!(sim.failed(node), JoinError::NotApproved);
}

#[test]
fn a_restarted_server_leaves_no_joiner_waiting_for_ever() {
    let mut sim = Sim::new(31);
    let code = sim.open(None, true);
    let node = sim.join(&code);
    sim.pass(seconds(5));
    sim.restart_server();
    assert!(sim.run(seconds(60)));
    assert_eq!(sim.failed(node), JoinError::NotApproved);
}

#[test]
fn the_queue_for_approval_is_bounded() {
    let mut sim = Sim::new(32);
    let code = sim.open(Some("mysecret"), true);
    for _ in 0..MAX_WAITING {
        sim.join(&code);
        sim.pass(seconds(1));
    }
    assert_eq!(sim.server.pending_approvals().len(), MAX_WAITING);
    let last = sim.join(&code);
    sim.pass(seconds(3));
    assert_eq!(sim.failed(last), JoinError::QueueFull);
    assert_eq!(sim.refusals(), [Reason::QueueFull]);
}

#[test]
fn eight_digits_are_read_as_people_type_them() {
    for (text, read) in [
        ("01234567", true),
        ("0123 4567", true),
        ("0123-4567", true),
        ("1234567", false),
        ("012345678", false),
        ("1234567x", false),
    ] {
        assert_eq!(ApprovalCode::parse(text).is_some(), read, "{text}");
    }
    assert_eq!(ApprovalCode::parse("0000 0042").expect("eight digits").to_string(), "00000042");
}

/// A joiner that knows the secret may start again, and each start is another chance for equal digits. Their number is
/// therefore limited.
#[test]
fn a_window_lets_only_so_many_ask_for_approval() {
    let mut sim = Sim::new(33);
    let code = "correct horse battery";
    let open = |sim: &mut Sim| {
        let passphrase = Some(Passphrase::new(code).expect("a passphrase"));
        let options = OpenOptions::default().with_duration(MAX_WINDOW).with_passphrase(passphrase).with_approve(true);
        sim.admin(|server, now, rng, actions| server.open(options, now, rng, actions).expect("no other window"));
    };
    open(&mut sim);
    let mut asked = 0;
    // They join one after the other. Each is approved at once, so the queue is never full.
    loop {
        let node = sim.join(code);
        while sim.nodes[node].waiting.is_none() && sim.nodes[node].outcome.is_none() {
            assert!(sim.step(sim.now.instant + seconds(1)));
        }
        let Some(shown) = sim.nodes[node].waiting else {
            assert_eq!(sim.failed(node), JoinError::QueueFull);
            break;
        };
        asked += 1;
        sim.admin(|server, now, _, actions| server.approve(shown, now, actions).expect("it waits"));
        while sim.nodes[node].outcome.is_none() {
            assert!(sim.step(sim.now.instant + seconds(5)));
        }
        assert!(asked <= MAX_ASKING, "more than a window takes");
    }
    assert_eq!(asked, MAX_ASKING);
    assert_eq!(sim.audited(AuditEvent::ApprovalWanted).len(), asked as usize, "nor more lines in the log");
    // A new window has a new count.
    sim.admin(|server, now, _, actions| server.close(now, actions));
    open(&mut sim);
    let node = sim.join(code);
    sim.pass(seconds(2));
    assert!(sim.nodes[node].waiting.is_some());
}
