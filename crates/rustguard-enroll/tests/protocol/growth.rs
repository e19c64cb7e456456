//! Limits on the audit log and disk space that machines which may join can use.
use crate::sim::{Sim, seconds};
use rustguard_enroll::{
    audit::{AuditEvent, Reason},
    server::InviteOptions,
};

/// A member joins again and again. The first rejoin has a line. Later there is one line in five minutes, and every
/// rejoin is counted.
#[test]
fn rejoining_for_ever_makes_few_lines_and_each_is_counted() {
    for by_window in [false, true] {
        let mut sim = Sim::new(240);
        sim.delay = 1;
        let token =
            if by_window { sim.open(Some("correct horse battery"), false) } else { sim.invite().to_text().to_string() };
        let node = sim.join(&token);
        assert!(sim.run(seconds(5)));
        sim.handshake(node);
        let (mut times, commits) = (0, sim.commits.get());
        let end = sim.now.instant + seconds(900);
        while sim.now.instant < end {
            if by_window && sim.server.window().is_none() {
                sim.open(Some("correct horse battery"), false);
            }
            sim.restart_client(node, &token);
            // A code first needs a cookie. A share is answered every 100 ms.
            if sim.run(seconds(30)) {
                sim.check(node);
                times += 1;
            }
            sim.pass(seconds(2));
        }
        sim.nodes.clear();
        sim.pass(seconds(600));
        let rejoined = sim.audited(AuditEvent::Rejoined);
        assert_eq!(rejoined.iter().map(|record| record.count).sum::<u32>(), times);
        assert!(times > 300, "{times}");
        assert!(rejoined.len() < 12, "{} lines for {times} rejoins", rejoined.len());
        assert!(sim.commits.get() - commits < 20, "nor is anything written for them");
    }
}

/// A holder of an invite with many uses takes one lease after another under new keys and never completes a handshake.
/// The uses come back, so this can continue without end.
#[test]
fn each_use_has_a_line_and_admissions_that_lead_nowhere_are_counted_after_these() {
    let mut sim = Sim::new(241);
    sim.delay = 1;
    let token = sim.invite_with(InviteOptions::default().with_uses(200)).to_text();
    let honest = sim.invite_with(InviteOptions::default().with_uses(5)).to_text();
    let (mut admitted, mut confirmed) = (0, 0);
    for round in 0..12 {
        for _ in 0..100 {
            sim.join(&token);
        }
        let stays = (round % 4 == 0).then(|| sim.join(&honest));
        assert!(sim.run(seconds(30)), "all of them are admitted");
        admitted += sim.nodes.len() as u32;
        if let Some(node) = stays {
            sim.handshake(node);
            confirmed += 1;
        }
        sim.nodes.clear();
        sim.pass(seconds(61));
    }
    sim.pass(seconds(600));
    let total =
        |records: &[&rustguard_enroll::audit::AuditRecord]| records.iter().map(|record| record.count).sum::<u32>();
    let lines = sim.audited(AuditEvent::Admitted);
    assert_eq!(total(&lines), admitted);
    assert!((200..320).contains(&lines.len()), "{} lines for {admitted} admissions", lines.len());
    let gone = sim.audited(AuditEvent::Removed);
    assert!(gone.iter().all(|record| record.reason == Some(Reason::NeverConfirmed)));
    assert_eq!(total(&gone), admitted - confirmed);
    assert!((200..320).contains(&gone.len()), "{} lines", gone.len());
    let stayed = sim.audited(AuditEvent::Confirmed);
    assert_eq!(stayed.len(), confirmed as usize);
    assert!(stayed.iter().all(|record| record.count == 1 && record.token.is_some() && record.public_key.is_some()));
}
