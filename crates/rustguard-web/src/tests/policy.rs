//! The page of the policy.

use super::{Browser, HOSTILE, KEY, Served, between, code, serve_policy};
use rustguard_device::uapi::{PolicyView, RefusalView};
use rustguard_policy::{
    directory::{Directory, Machine},
    policy::Policy,
};
use rustguard_serve::{InForce, PolicyHandle};
use std::{fs, path::Path, sync::Arc};
use tokio::sync::watch;

pub(super) const TEXT: &str =
    "# a comment\nallow laptop -> db tcp/5432\nallow laptop -> 10.0.0.3 icmp\ntest db -> laptop refused\n";

/// A policy in force, from a file in this folder.
pub(super) fn handle(folder: &Path, text: &str) -> PolicyHandle {
    let machine = |name: &str, n: u8| Machine {
        name: name.to_owned(),
        addresses: vec![[10, 0, 0, n].into(), [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into()],
        ..Machine::default()
    };
    let machines = Directory::new([machine("laptop", 2), machine("db", 3)]);
    let file = folder.join("rg0.policy");
    fs::write(&file, text).unwrap();
    let in_force = InForce::new(Policy::parse(text).0.unwrap().into(), machines);
    PolicyHandle::new(file, watch::Sender::new(Some(Arc::new(in_force))).subscribe())
}

/// The view of a device that has refused packets of a machine with a hostile name.
pub(super) fn refusals() -> PolicyView {
    let refusal = |reason: &str, why: &str, traffic: &str, port| RefusalView {
        name: None,
        traffic: traffic.to_owned(),
        why: why.to_owned(),
        at: 7,
        peer: rustguard_device::key::to_base64(&KEY).to_string(),
        from: [10, 0, 0, 2].into(),
        to: [10, 9, 0, 1].into(),
        protocol: 6,
        port,
        packets: 41,
        reason: reason.to_owned(),
    };
    let refusals = vec![
        refusal("not-allowed", "no line allows it", "tcp/22", Some(22)),
        refusal("malformed-fragment", "a malformed fragment", "tcp", None),
    ];
    PolicyView { rules: 2, connections: 3, capacity: 65_536, refused: 4_242, refusals }
}

fn page(text: &str) -> (Served, impl Fn(&Browser<'_>, &str) -> String) {
    (serve_policy(|folder| Some(handle(folder, text))), |browser: &Browser<'_>, query: &str| {
        let answer = browser.get(&format!("/policy{query}"));
        assert_eq!(code(&answer), "200", "{answer}");
        answer
    })
}

fn answered(page: &str) -> String {
    let answer = between(page, "<div id=\"answer\" role=\"status\">", "<section");
    let answer = answer.split("</form>").next().unwrap_or_default();
    // Only its text.
    answer.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
}

#[test]
fn the_lines_and_what_was_refused() {
    let (served, get) = page(TEXT);
    let browser = served.browser("alice");
    let shown = get(&browser, "");
    for words in [
        "allow laptop -&gt; db tcp/5432",
        "<li id=\"line-2\">",
        "4242",
        "tcp/22",
        "a malformed fragment",
        "no line allows it",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(shown.contains("href=\"/policy\" aria-current=\"page\""), "{shown}");
    assert!(!shown.contains("file-notice") && !shown.contains("Mistakes"), "{shown}");
    assert!(answered(&shown).is_empty(), "nobody has asked");
}

#[test]
fn a_question_is_answered_as_on_the_command_line() {
    let (served, get) = page(TEXT);
    let browser = served.browser("alice");
    served.acts();
    for (query, words) in [
        (
            "?from=laptop&to=db&traffic=tcp%2F5432",
            "Yes: from laptop to db, tcp/5432 is allowed.Allowed:tcp/5432 by line 2: allow laptop -&gt; db tcp/5432",
        ),
        ("?from=laptop&to=10.0.0.3&traffic=icmp", "Yes: from laptop to 10.0.0.3, icmp"),
        (
            "?from=laptop&to=db&traffic=icmp",
            "Only in part: from laptop to db, icmp is allowed in part.Allowed:icmp by line 3: allow laptop -&gt; 10.0.0.3 \
             icmpRefused:icmp from fd00::2 to fd00::3and what",
        ),
        (
            "?from=laptop&to=db&traffic=tcp%2F5430-5440",
            "Only in part: from laptop to db, tcp/5430-5440 is allowed in part.Allowed:tcp/5432 by line 2: allow laptop -&gt; db \
             tcp/5432Refused:the rest of tcp/5430-5440, which no line allows",
        ),
        ("?from=laptop&to=db&traffic=", "Refused:the rest, which no line allows"),
        ("?from=db&to=laptop&traffic=icmp", "No: from db to laptop, icmp is refused: no line allows any of it."),
        ("?from=phone&to=db", "No answer: no machine is called phone; there are db, laptop."),
        ("?from=laptop&to=db&traffic=tpc", "No answer: "),
        ("?from=laptop", "No answer: say who begins"),
        ("?from=10.0.0.2&to=fd00::3", "no addresses of one version of IP"),
    ] {
        let answer = answered(&get(&browser, query));
        assert!(answer.contains(words), "{query}: {answer}");
    }
    assert_eq!(served.acts(), [], "to ask changes nothing");
    // The question stays in the form, and in the live page.
    let shown = get(&browser, "?from=laptop&to=db&traffic=icmp");
    assert!(shown.contains("data-page=\"/policy?from=laptop&amp;to=db&amp;traffic=icmp\""), "{shown}");
    assert!(
        shown.contains("name=\"from\" value=\"laptop\"") && shown.contains("name=\"traffic\" value=\"icmp\""),
        "{shown}"
    );
}

#[test]
fn foreign_words_in_a_question_are_text() {
    let (served, get) = page(TEXT);
    let browser = served.browser("alice");
    let evil: String = form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect();
    for query in [
        format!("?from={evil}&to=db"),
        format!("?from=laptop&to={evil}"),
        format!("?from=laptop&to=db&traffic={evil}"),
        format!("?from=laptop&to=db&traffic=tcp%2F{evil}"),
    ] {
        let shown = get(&browser, &query);
        assert!(shown.contains("&lt;script&gt;") && answered(&shown).contains("No answer"), "{query}: {shown}");
        assert!(!shown.contains("<img") && shown.matches("<script").count() == 1, "{query}: {shown}");
        assert!(!answered(&shown).contains('\u{202e}'), "{query}: {shown}");
    }
    let long = "x".repeat(8_000);
    assert!(answered(&get(&browser, &format!("?from={long}&to=db"))).contains("longer than"));
    // Without a session, no question is answered.
    for path in ["/policy", "/policy?from=laptop&to=db&traffic=icmp", "/live?page=/policy"] {
        let shown = served.get(path, "");
        assert!(code(&shown) == "403" && !shown.contains("laptop") && !shown.contains("allow"), "{shown}");
    }
}

#[test]
fn a_newer_file_is_compared_with_what_is_in_force() {
    let (served, get) = page(TEXT);
    let browser = served.browser("alice");
    let file = served.folder().join("rg0.policy");
    fs::write(&file, "allow laptop -> db\n\tallow <img> -> db\nalow laptop -> db\n").unwrap();
    let shown = get(&browser, "");
    for words in [
        "it has mistakes",
        "Mistakes in the file",
        "line 3, column 1: a line begins with allow, test or group",
        "3 | <mark>alow</mark> laptop -&gt; db\n<span aria-hidden=\"true\">    ^^^^</span>",
        "&lt;img&gt;",
        "The rules in force",
        "<li value=\"2\">",
        "The file, which is not in force",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains("<img"), "{shown}");
    // The answer follows the policy in force.
    assert!(answered(&get(&browser, "?from=laptop&to=db&traffic=icmp")).contains("Only in part"));
    // A failing test is a mistake as well. A name that has changed causes a warning.
    fs::write(&file, "allow laptpo -> db\ntest laptop -> db allowed\n").unwrap();
    let shown = get(&browser, "");
    assert!(
        shown.contains("this test fails for laptop") && shown.contains("no machine and no group is called laptpo"),
        "{shown}"
    );
    fs::write(&file, "allow laptop -> db\n").unwrap();
    let shown = get(&browser, "");
    assert!(shown.contains("is not in force yet") && !shown.contains("id=\"mistakes\""), "{shown}");
    fs::write(&file, b"allow \xff").unwrap();
    assert!(get(&browser, "").contains("cannot read the policy"));
    fs::remove_file(&file).unwrap();
    assert!(get(&browser, "").contains("is gone: put it back"));
    fs::write(&file, TEXT).unwrap();
    assert!(!get(&browser, "").contains("file-notice"));
}

#[test]
fn a_long_file_with_long_lines_is_bounded() {
    let text = format!("allow laptop -> db # {}\n", "\u{7}".repeat(50_000)) + &"# line\n".repeat(5_000);
    let (served, get) = page(&text);
    let browser = served.browser("alice");
    let shown = get(&browser, "");
    assert!(shown.contains("These are the first 2000 lines.") && shown.len() < 300_000, "{}", shown.len());
    // A mistake at the end of a long line.
    let wrong = format!("allow {}laptop -> db tpc/1 {}\n", "laptop, ".repeat(500), "x".repeat(10_000));
    fs::write(served.folder().join("rg0.policy"), wrong).unwrap();
    let shown = get(&browser, "");
    let excerpt = between(&shown, "<pre class=\"excerpt\"", "</pre>");
    assert!(excerpt.contains('…') && excerpt.len() < 1_000, "{excerpt}");
}

#[test]
fn a_network_without_a_policy_and_a_star() {
    let none =
        serve_policy(|folder| Some(PolicyHandle::new(folder.join("rg0.policy"), watch::Sender::new(None).subscribe())));
    let browser = none.browser("alice");
    let shown = browser.get("/policy?from=a&to=b");
    assert!(
        shown.contains("There is no policy: everybody may talk to everybody.")
            && !shown.contains("<form method=\"get\""),
        "{shown}"
    );
    fs::write(none.folder().join("rg0.policy"), "allow * -> *\n").unwrap();
    let shown = browser.get("/policy");
    assert!(shown.contains("is not in force yet") && shown.contains("allow * -&gt; *"), "{shown}");
    let star = serve_policy(|_| None);
    assert!(star.browser("alice").get("/policy").contains("A star has no policy"));
}
