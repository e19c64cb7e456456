//! Policies that an administrator writes, and the sheets that a roster brings.
use rustguard_policy::{
    directory::{Directory, Machine},
    policy::Policy,
    rules::Flow,
    sheet::{MAX_SHEET, Sheet},
};
use std::{net::IpAddr, sync::LazyLock};

static MACHINES: LazyLock<Directory> = LazyLock::new(|| {
    let machine = |n: u8, name: &str, tag: &str, prefixes: &[&str]| Machine {
        name: name.to_owned(),
        tags: vec![tag.to_owned()],
        addresses: vec![[10, 150, 0, n].into(), format!("fd15::{n}").parse().expect("an address")],
        prefixes: prefixes.iter().map(|prefix| prefix.parse().expect("a prefix")).collect(),
        server: n == 1,
    };
    Directory::new([
        machine(1, "hub", "server", &[]),
        machine(2, "laptop", "dev", &[]),
        machine(3, "db", "db", &[]),
        machine(4, "office", "site", &["192.168.1.0/24"]),
    ])
});

/// Reads the input as a policy and as a sheet.
///
/// Reported places are inside the text. An accepted policy can be distributed, and each member then enforces for itself
/// what the whole policy says. An accepted sheet is written unchanged.
pub fn policy(input: &[u8]) {
    if let Some(sheet) = Sheet::from_bytes(input) {
        assert_eq!(sheet.to_bytes(), input);
        MACHINES.machines().iter().for_each(|machine| drop(sheet.rules(&MACHINES, &machine.name)));
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (policy, diagnostics) = Policy::parse(text);
    let checked = policy.iter().flat_map(|policy| policy.check(&MACHINES));
    for diagnostic in diagnostics.into_iter().chain(checked) {
        let lines = text[..diagnostic.span.bytes.start].matches('\n').count() as u32;
        assert_eq!(diagnostic.span.line, lines + 1, "{diagnostic}");
        assert!(!text[diagnostic.span.bytes].contains('\n') && !diagnostic.message.contains('\u{1b}'));
    }
    let Some(policy) = policy else { return };
    let all = policy.all(&MACHINES);
    let ends: Vec<(&Machine, IpAddr)> =
        MACHINES.machines().iter().flat_map(|it| it.addresses.iter().map(move |address| (it, *address))).collect();
    for (machine, to) in &ends {
        let sheet = Sheet::of(&policy, machine).to_bytes();
        assert!(sheet.len() <= MAX_SHEET);
        let rules = Sheet::from_bytes(&sheet).expect("what is written is read").rules(&MACHINES, &machine.name);
        for ((_, from), (protocol, port)) in ends.iter().flat_map(|end| [(6, Some(22)), (58, None)].map(|it| (end, it)))
        {
            let flow = Flow { from: *from, to: *to, protocol, port };
            assert_eq!(rules.allows(&flow), all.allows(&flow), "{flow:?}");
        }
    }
}
