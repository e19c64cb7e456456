use super::*;
use crate::{
    directory::{Directory, Machine},
    rules::Flow,
    sheet::{MAX_SHEET, Sheet},
};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use std::net::IpAddr;

fn machine(n: u8, name: &str, tags: &[&str]) -> Machine {
    Machine {
        name: name.to_owned(),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        addresses: vec![[10, 150, 0, n].into(), format!("fd15::{n}").parse().unwrap()],
        ..Machine::default()
    }
}

fn network() -> Directory {
    let hub = Machine { server: true, ..machine(1, "hub", &[]) };
    let office = Machine { prefixes: vec!["192.168.1.0/24".parse().unwrap()], ..machine(5, "office", &[]) };
    Directory::new([hub, machine(2, "laptop", &["dev"]), machine(3, "db", &["db"]), machine(4, "phone", &[]), office])
}

fn policy(text: &str) -> Policy {
    let (policy, diagnostics) = Policy::parse(text);
    policy.unwrap_or_else(|| panic!("{diagnostics:?}"))
}

/// Whether `from` may talk to `to`, as decided by the member that enforces for `to`, with its sheet after sending.
fn enforced(policy: &Policy, directory: &Directory, receiver: &str, flow: &Flow) -> Option<u32> {
    let sheet = Sheet::of(policy, directory.machine(receiver).unwrap());
    let sheet = Sheet::from_bytes(&sheet.to_bytes()).expect("what is written is read");
    sheet.rules(directory, receiver).allows(flow)
}

fn flow(from: &str, to: &str, protocol: u8, port: impl Into<Option<u16>>) -> Flow {
    Flow { from: from.parse().unwrap(), to: to.parse().unwrap(), protocol, port: port.into() }
}

const POLICY: &str = "\
# Nobody else.
group admins = laptop, tag:ops   # a comment
allow admins -> *
allow tag:dev -> tag:db, office tcp/5432,6000-6002
allow phone->192.168.1.0/24 icmp,tcp/22,443 # no spaces
allow 10.150.0.4 -> db udp

test laptop -> db tcp/5432 allowed
test laptop -> * allowed
test phone -> db tcp refused
test phone -> 192.168.1.9 tcp/22 allowed
test phone, db -> laptop refused
";

#[test]
fn what_no_line_allows_is_refused() {
    let (directory, policy) = (network(), policy(POLICY));
    let errors = policy.check(&directory);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].to_string(), "2:24: no machine has the tag ops");
    let decided = [
        ("db", flow("10.150.0.2", "10.150.0.3", 6, 5432), Some(3)),
        ("db", flow("fd15::2", "fd15::3", 17, 1), Some(3)),
        ("db", flow("10.150.0.4", "10.150.0.3", 17, 9), Some(6)),
        ("db", flow("fd15::4", "fd15::3", 17, 9), None),
        ("db", flow("10.150.0.4", "10.150.0.3", 6, 5432), None),
        ("office", flow("10.150.0.4", "192.168.1.7", 6, 443), Some(5)),
        ("office", flow("10.150.0.4", "192.168.1.7", 1, None), Some(5)),
        ("office", flow("10.150.0.4", "192.168.1.7", 6, 80), None),
        ("office", flow("10.150.0.4", "10.150.0.5", 6, 443), None),
        // A member decides only about its own addresses.
        ("phone", flow("10.150.0.4", "192.168.1.7", 6, 443), None),
        // A server also decides about the traffic that its clients send.
        ("hub", flow("10.150.0.4", "192.168.1.7", 6, 443), Some(5)),
        ("hub", flow("10.150.0.4", "10.150.0.3", 6, 443), None),
    ];
    for (receiver, flow, expected) in decided {
        assert_eq!(enforced(&policy, &directory, receiver, &flow), expected, "{receiver}: {flow:?}");
    }
}

#[test]
fn a_member_gets_what_concerns_it() {
    let (directory, policy) = (network(), policy(POLICY));
    let sheet = |name: &str| {
        let sheet = Sheet::of(&policy, directory.machine(name).unwrap());
        String::from_utf8(sheet.to_bytes()).unwrap()
    };
    let all = "3 allow laptop, tag:ops -> *\n";
    assert_eq!(sheet("phone"), format!("rustguard policy 1\n{all}"));
    assert_eq!(
        sheet("db"),
        format!(
            "rustguard policy 1\n{all}4 allow tag:dev -> tag:db tcp/5432,6000-6002\n6 allow 10.150.0.4 -> db udp\n"
        ),
        "nothing of the office"
    );
    assert_eq!(
        sheet("office"),
        format!(
            "rustguard policy 1\n{all}4 allow tag:dev -> office tcp/5432,6000-6002\n5 allow phone -> 192.168.1.0/24 icmp,tcp/22,443\n"
        )
    );
    assert_eq!(sheet("hub").lines().count(), 5);
}

/// A machine that joins, or gets a tag, changes at most its own sheet.
#[test]
fn sheets_stay_while_machines_come_and_go() {
    let (directory, policy) = (network(), policy(POLICY));
    let more = Directory::new(directory.machines().iter().cloned().chain([machine(9, "desk", &["dev", "ops"])]));
    let joined = flow("10.150.0.9", "10.150.0.3", 6, 5432);
    let sheet = Sheet::of(&policy, directory.machine("db").unwrap());
    assert_eq!(sheet, Sheet::of(&policy, more.machine("db").unwrap()));
    assert_eq!(
        (sheet.rules(&directory, "db").allows(&joined), sheet.rules(&more, "db").allows(&joined)),
        (None, Some(3))
    );
    assert!(sheet.rules(&more, "nobody").is_empty());
}

#[test]
fn mistakes_have_places_and_suggestions() {
    for (line, expected) in [
        (
            "alow laptop -> db",
            "1:1: a line begins with allow, test or group, and not with `alow`; did you mean `allow`?",
        ),
        ("allow laptop db -> x", "1:14: `->` is missing here; several are separated by commas"),
        ("allow laptop", "1:13: `->` is missing here"),
        ("allow -> db", "1:7: a machine, a tag, a group, a prefix or `*` is missing"),
        ("allow laptop -> db,", "1:20: a machine, a tag, a group, a prefix or `*` is missing"),
        ("allow Laptop -> db", "1:7: `Laptop` is no name of a machine or group; write laptop"),
        ("allow tga:dev -> db", "1:7: `tga:dev` is no tag, no prefix and no address; did you mean tag:dev?"),
        ("allow tag: -> db", "1:7: `` is no name of a tag; letters, digits and `-`, at most 63"),
        (
            "allow 10.1.2.3/8 -> db",
            "1:7: 10.1.2.3/8 has bits behind its length; write 10.0.0.0/8, or 10.1.2.3 for the one address",
        ),
        ("allow 10.1.2 -> db", "1:7: `10.1.2` is no prefix and no address"),
        ("allow ä -> db tpc/22", "1:7: `ä` is no name of a machine or group; letters, digits and `-`, at most 63"),
        ("allow a -> db tpc/22", "1:15: `tpc` is no protocol: icmp, tcp/22,443, udp/53 or proto/47; did you mean tcp?"),
        (
            "allow a -> db tcp/ssh",
            "1:15: `ssh` is no port from 0 to 65535; ports are numbers, as in tcp/22,443 or tcp/8000-8100",
        ),
        (
            "allow a -> db tcp/9-1",
            "1:15: `9-1` is no port from 0 to 65535; ports are numbers, as in tcp/22,443 or tcp/8000-8100",
        ),
        (
            "allow a -> db tcp/+9",
            "1:15: `+9` is no port from 0 to 65535; ports are numbers, as in tcp/22,443 or tcp/8000-8100",
        ),
        (
            "allow a -> db 22",
            "1:15: `22` stands behind no protocol with ports; write the protocol in front of it: tcp/22",
        ),
        (
            "allow a -> db tcp,22",
            "1:19: `22` stands behind no protocol with ports; write the protocol in front of it: tcp/22",
        ),
        ("allow a -> db icmp/8", "1:15: ICMP has no ports; write icmp"),
        ("allow a -> db proto/256", "1:15: `256` is no number from 0 to 255"),
        ("allow a -> db tcp/22 udp", "1:22: this is more than a rule has"),
        ("test a -> db tcp/22", "1:20: a test ends with `allowed` or `refused`"),
        (
            "test a -> db alowed",
            "1:14: `alowed` is no protocol: icmp, tcp/22,443, udp/53 or proto/47; did you mean allowed?",
        ),
        ("test a -> 10.0.0.0/8 refused", "1:1: a test names machines and addresses, and 10.0.0.0/8 is a prefix"),
        ("group = a", "1:7: a group has a name: group NAME = laptop, tag:dev"),
        ("group g a", "1:9: a `=` follows the name of a group: group NAME = laptop, tag:dev"),
        ("  \u{1b}[2J", "1:3: a line begins with allow, test or group, and not with `\\u{1b}[2J`"),
    ] {
        let (policy, diagnostics) = Policy::parse(line);
        assert!(policy.is_none(), "{line}");
        assert_eq!(diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected], "{line}");
    }
    let twice = Policy::parse("group g = a\n\ngroup g = b\nallow x ->\n").1;
    assert_eq!(twice.len(), 2, "all mistakes are told: {twice:?}");
    let again =
        "3:7: there is a group g already, in line 1; write all of it in one line, or give this group another name";
    assert_eq!((twice[0].to_string(), &twice[1].span.bytes), (again.to_owned(), &(35..35)));
}

#[test]
fn a_group_is_for_the_lines_below_it() {
    let wrong = |text: &str| {
        let (policy, diagnostics) = Policy::parse(text);
        assert_eq!(policy.is_none(), !diagnostics.is_empty(), "{text}");
        diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(wrong("group admins = desk\nallow admins -> *"), [""; 0]);
    let below = "the group admins is made below, in line 4, and is known from there on; move that line above this one";
    assert_eq!(
        wrong("allow desk -> tag:x, admins\ntest admins -> db refused\ngroup all = admins, desk\ngroup admins = desk"),
        [format!("1:22: {below}"), format!("2:6: {below}"), format!("3:13: {below}")]
    );
    assert_eq!(
        wrong("group g = a, g"),
        ["1:14: the group g cannot be a part of itself; leave g out here"],
        "and not a machine that has this name as well"
    );
    // The order is that of the file, and the number is limited.
    let text = format!("{}group g = a\nalow\n", "allow g -> b\n".repeat(300));
    let all = Policy::parse(&text).1;
    assert_eq!((all.len(), all[0].span.line, all[99].span.line), (100, 1, 302), "{:?}", all[99]);
}

#[test]
fn names_that_nobody_has_are_warnings_and_tests_that_fail_are_errors() {
    let of = |text: &str| {
        let diagnostics = policy(text).check(&network());
        diagnostics.iter().map(|it| format!("{} {it}", it.severity as u8)).collect::<Vec<_>>()
    };
    assert_eq!(of("allow laptpo -> *"), ["0 1:7: no machine and no group is called laptpo; there is laptop"]);
    assert_eq!(of("allow * -> tag:dbs"), ["0 1:12: no machine has the tag dbs; there is tag:db"]);
    assert_eq!(
        of("group db = phone\nallow db -> laptop"),
        [
            "0 1:7: db is a group, and a machine has this name as well: the group is meant; give the machine another name: rustguard peer rename db NAME"
        ]
    );
    let rules = "allow phone -> db tcp/1-99\nallow phone -> db tcp/100-200\n";
    for (test, expected) in [
        ("phone -> db tcp/50-150 allowed", None),
        ("phone -> db tcp/50-201 allowed", Some("line 1 allows only a part of it")),
        ("phone -> db tcp/201-300 refused", None),
        ("phone -> db tcp/0-1 refused", Some("line 1 allows a part of it")),
        ("phone -> db tcp/5 refused", Some("line 1 allows it")),
        ("phone -> db refused", Some("line 1 allows a part of it")),
        ("phone -> db udp allowed", Some("no line allows it")),
        ("phone -> laptop refused", None),
    ] {
        let expected: Vec<_> =
            expected.iter().map(|why| format!("1 3:1: this test fails for phone -> db: {why}")).collect();
        assert_eq!(of(&format!("{rules}test {test}")), expected, "{test}");
    }
    let nothing = "0 1:1: nothing is tested: there are no two such machines with addresses of one version of IP";
    assert_eq!(of("test 10.0.0.1 -> fd00::1 refused"), [nothing]);
}

#[test]
fn too_much_is_refused() {
    let long = "allow tag:dev -> tag:db tcp/1\n";
    let wrong = |text: &str| Policy::parse(text).1.first().map(ToString::to_string).unwrap_or_default();
    assert_eq!(wrong(&long.repeat(MAX_RULES)), "");
    assert_eq!(wrong(&long.repeat(MAX_RULES + 1)), "1025:1: a policy has at most 1024 rules");
    assert_eq!(wrong(&"#".repeat(MAX_POLICY + 1)), "1:1: the policy has 262145 bytes; at most 262144 are read");
    let names: Vec<_> = (0..1_000).map(|n| format!("machine-{n}")).collect();
    let group = format!("group all = {}\n", names.join(","));
    assert_eq!(wrong(&format!("{group}allow all -> all")), "");
    assert!(wrong(&format!("{group}{}", "allow all -> all\n".repeat(9))).contains(&format!("at most {MAX_SHEET}")));
    assert!(wrong(&format!("{group}allow all, all -> all")).contains("more than 1024"));
    let ports: Vec<_> = (0..65).map(|n| n.to_string()).collect();
    assert!(wrong(&format!("allow a -> b tcp/{}", ports.join(","))).contains("more than 64"));
    assert_eq!(Policy::parse(&"x\n".repeat(500)).1.len(), 100);
}

#[test]
fn a_sheet_that_this_version_does_not_write_is_not_read() {
    let good = "rustguard policy 1\n4 allow tag:dev -> tag:db tcp/5432\n";
    assert!(Sheet::from_bytes(good.as_bytes()).is_some());
    for (what, bad) in [
        ("another version", good.replace("policy 1", "policy 2")),
        ("a group", format!("{good}5 group a = b\n")),
        ("a test", format!("{good}5 test a -> b allowed\n")),
        ("a comment", format!("{good}# no\n")),
        ("another way to write it", good.replace(" -> ", "->")),
        ("no end", good.trim_end().to_owned()),
        ("a rule of tomorrow", format!("{good}5 deny a -> b\n")),
        ("a sign", good.replace("\n4", "\n+4")),
        ("too many", format!("rustguard policy 1\n{}", "4 allow a -> b\n".repeat(MAX_RULES + 1))),
    ] {
        assert!(Sheet::from_bytes(bad.as_bytes()).is_none(), "{what}");
    }
    for len in 0..good.len() {
        let whole = "rustguard policy 1\n".len();
        assert_eq!(Sheet::from_bytes(&good.as_bytes()[..len]).is_some(), len == whole, "{len}");
    }
}

/// The file as a person reads it: the first line whose words match both ends.
fn naive(policy: &Policy, directory: &Directory, flow: &Flow) -> Option<u32> {
    let means = |item: &Item, address: IpAddr| match item {
        Item::All => true,
        Item::Prefix(prefix) => prefix.contains(&address),
        Item::Machine(name) => {
            directory.machines().iter().any(|it| it.name == *name && it.addresses.contains(&address))
        }
        Item::Tag(tag) => {
            directory.machines().iter().any(|it| it.tags.contains(tag) && it.addresses.contains(&address))
        }
    };
    let allows = |rule: &&Rule| {
        rule.who.iter().any(|item| means(item, flow.from))
            && rule.whom.iter().any(|item| means(item, flow.to))
            && rule.traffic.contains(flow.protocol, flow.port)
    };
    policy.rules().iter().find(allows).map(|rule| rule.line)
}

/// Each receiver enforces exactly the policy of the file, for random policies and networks.
#[test]
fn receivers_agree_with_the_file() {
    for seed in 0..60_u64 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut pick = |from: &[&str]| from[rng.random_range(0..from.len())].to_owned();
        const NAMES: [&str; 6] = ["hub", "a", "b", "c", "d", "e"];
        const ITEMS: [&str; 14] = [
            "*",
            "a",
            "b",
            "c",
            "gone",
            "tag:x",
            "tag:y",
            "tag:z",
            "g",
            "192.168.0.0/16",
            "192.168.3.0/24",
            "10.150.0.2",
            "fd15::/64",
            "172.16.0.0/12",
        ];
        const TRAFFIC: [&str; 8] = ["", "tcp", "udp/53", "icmp", "tcp/22,80-90", "proto/47,icmp", "tcp/1-1023,udp", ""];
        let mut text = format!("group g = {}, {}\n", pick(&["a", "tag:x"]), pick(&["192.168.4.0/22", "e"]));
        let machines: Vec<_> = (1..)
            .zip(NAMES)
            .map(|(n, name)| {
                let tags = [pick(&["x", "y", "-"]), pick(&["y", "z", "-"])];
                let prefixes = ["192.168.3.0/24", "192.168.4.0/23", "10.0.0.0/8", "-", "-"];
                let prefixes = [pick(&prefixes)].iter().filter_map(|net| net.parse().ok()).collect();
                Machine { prefixes, server: n == 1, ..machine(n, name, &tags.each_ref().map(String::as_str)) }
            })
            .collect();
        for _ in 0..6 {
            let [a, b, c, d] = [(); 4].map(|()| pick(&ITEMS));
            text += &format!("allow {a}, {b} -> {c}, {d} {}\n", pick(&TRAFFIC));
        }
        let (policy, directory) = (policy(&text), Directory::new(machines));
        let all = policy.all(&directory);
        const OTHERS: [&str; 5] = ["192.168.3.7", "192.168.5.1", "10.77.0.1", "172.16.9.9", "fd15::77"];
        let ends: Vec<IpAddr> = directory.machines().iter().flat_map(|it| it.addresses.clone()).collect();
        let ends: Vec<_> = ends.into_iter().chain(OTHERS.map(|it| it.parse().unwrap())).collect();
        let said = [
            (6, Some(22)),
            (6, Some(85)),
            (6, Some(4000)),
            (6, None),
            (17, Some(53)),
            (1, None),
            (58, None),
            (47, None),
        ];
        let flows = ends.iter().flat_map(|&from| ends.iter().map(move |&to| (from, to)));
        let of = |member| Sheet::from_bytes(&Sheet::of(&policy, member).to_bytes()).unwrap();
        let of_members = directory.machines().iter().map(|member| (member, of(member).rules(&directory, &member.name)));
        let of_members: Vec<_> = of_members.collect();
        for ((from, to), (protocol, port)) in flows.flat_map(|ends| said.map(|said| (ends, said))) {
            let flow = Flow { from, to, protocol, port };
            let expected = naive(&policy, &directory, &flow);
            assert_eq!(all.allows(&flow), expected, "seed {seed}, {flow:?}\n{text}");
            for (member, rules) in &of_members {
                // An address of a member inside another member's prefix belongs to the first: its route is more
                // specific.
                let is_members = directory.machines().iter().any(|it| it.addresses.contains(&to));
                let covers = member.prefixes.iter().any(|net| net.contains(&to));
                let is_behind = covers && !is_members;
                if member.server || member.addresses.contains(&to) || is_behind {
                    assert_eq!(rules.allows(&flow), expected, "seed {seed}, {}: {flow:?}\n{text}", member.name);
                } else {
                    let is_all =
                        |line: &u32| policy.rules().iter().any(|it| it.line == *line && it.whom.contains(&Item::All));
                    assert!(
                        covers || rules.allows(&flow).is_none_or(|line| is_all(&line)),
                        "seed {seed}, {}: {flow:?}",
                        member.name
                    );
                }
            }
        }
    }
}
