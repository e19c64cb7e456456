//! Address translation and forwarding for a gateway: packets of the tunnel's machines get this host's address on their
//! way to the networks behind it, so that the hosts there can answer without a route back.
//!
//! The rules are in tables of their own, `rustguard_nat-NAME`. The forwarding settings that are off are switched on,
//! and off again at the end, unless another tunnel still needs them or somebody has changed them since. Switching such
//! a setting off also switches it off on each interface, so interfaces that forwarded before are switched on again
//! afterwards.
//!
//! With IPv6 forwarding, the kernel ignores router advertisements on interfaces where `accept_ra` is 1, and the host
//! would lose its own default route when the route expires. On these interfaces `accept_ra` is 2 in the meantime.

use super::{
    command::find_program,
    error::HostError,
    link::is_v6,
    record::Journal,
    rules,
    step::{Step, Sysctl},
    tunable::{self, FORWARDING_V4, FORWARDING_V6, path},
};
use crate::{gateway::Gateway, helper::Rules};
use std::{collections::BTreeSet, fs, io::ErrorKind::NotFound};

/// Below /proc/sys.
const IPV4_INTERFACES: &str = "net/ipv4/conf";
const IPV6_INTERFACES: &str = "net/ipv6/conf";

/// Sets up translation and forwarding between the pools and the networks of the gateway.
pub(super) async fn add(journal: &mut Journal, gateway: &Gateway) -> Result<(), HostError> {
    let has = |v6: bool| gateway.pairs().any(|(_, network)| is_v6(network) == v6);
    let (v4, v6) = (has(false), has(true));
    if !v4 && !v6 {
        return Ok(());
    }
    if find_program("nft").is_none() {
        return Err(HostError::NatWithoutNft);
    }
    let interface = journal.interface().to_owned();
    journal.record(Step::Nat { v4, v6 })?;
    rules::load(&interface, Rules::Nat { v4, v6, gateway: gateway.clone() }).await?;
    // Forwarding comes last, so that no packet leaves untranslated.
    if v4 {
        keep_forwarding(journal, IPV4_INTERFACES)?;
        set(journal, FORWARDING_V4, "1")?;
    }
    if v6 {
        // Settings that another tunnel has changed already are recorded too, so that the last of the two tunnels resets
        // them.
        let others: Vec<_> = journal.others().flat_map(|other| other.steps).collect();
        let others = others.iter().filter_map(|step| match step {
            Step::Sysctl(sysctl) if sysctl.name.ends_with("/accept_ra") => Some(sysctl.name.clone()),
            _ => None,
        });
        for name in with_router_advertisements(&interface).into_iter().chain(others) {
            set(journal, &name, "2")?;
        }
        keep_forwarding(journal, IPV6_INTERFACES)?;
        set(journal, FORWARDING_V6, "1")?;
    }
    Ok(())
}

/// Removes the tables of an interface.
pub(super) async fn remove(interface: &str, v4: bool, v6: bool) -> Result<(), HostError> {
    rules::load(interface, Rules::NoNat { v4, v6 }).await
}

/// Resets a setting, unless another tunnel needs it, or its value is not the one that was set.
pub(super) fn reset(journal: &Journal, sysctl: &Sysctl) -> Result<(), HostError> {
    let path = path(&sysctl.name);
    let shared = journal.others().any(|other| needs(&other.steps, &sysctl.name).is_some());
    match fs::read_to_string(&path) {
        // An interface that is gone has no setting any more.
        Err(error) if error.kind() == NotFound => Ok(()),
        Ok(now) if shared || now.trim() != sysctl.set => Ok(()),
        _ => write(&sysctl.name, &sysctl.before),
    }
}

/// Changes a setting, and records the change.
fn set(journal: &mut Journal, name: &str, wanted: &str) -> Result<(), HostError> {
    let now = fs::read_to_string(path(name)).unwrap_or_default().trim().to_owned();
    let before = if now == wanted {
        // Another tunnel may have changed it. The last of the two tunnels resets it.
        let Some(before) = journal.others().find_map(|other| needs(&other.steps, name)) else { return Ok(()) };
        before
    } else {
        now
    };
    journal.record(Step::Sysctl(Sysctl { name: name.to_owned(), before, set: wanted.to_owned() }))?;
    write(name, wanted)
}

/// The former value of a setting that these steps changed.
fn needs(steps: &[Step], name: &str) -> Option<String> {
    steps.iter().find_map(|step| match step {
        Step::Sysctl(sysctl) if sysctl.name == name => Some(sysctl.before.clone()),
        _ => None,
    })
}

/// The `accept_ra` settings of interfaces that would ignore router advertisements as soon as the host forwards.
fn with_router_advertisements(tunnel: &str) -> Vec<String> {
    let names = interfaces(IPV6_INTERFACES).filter(|name| !["all", "default", "lo", tunnel].contains(&name.as_str()));
    let names = names.map(|name| format!("{IPV6_INTERFACES}/{name}"));
    let names = names.filter(|name| is(&format!("{name}/accept_ra"), "1") && is(&format!("{name}/forwarding"), "0"));
    names.map(|name| format!("{name}/accept_ra")).collect()
}

/// Records the interfaces that forward although the setting for all interfaces is off. Resetting that setting switches
/// them off. This step is undone afterwards, and switches them on again.
fn keep_forwarding(journal: &mut Journal, folder: &str) -> Result<(), HostError> {
    let forwards = |name: &String| is(&format!("{folder}/all/forwarding"), "0") && is(name, "1");
    let single = interfaces(folder).map(|name| format!("{folder}/{name}/forwarding")).filter(forwards);
    // Another tunnel has switched forwarding on already. The last of the two tunnels switches it off.
    let others: Vec<_> = journal.others().flat_map(|other| other.steps).collect();
    let others = others.into_iter().filter_map(|step| match step {
        Step::Sysctl(sysctl) if sysctl.name.starts_with(folder) && sysctl.set == "0" => Some(sysctl.name),
        _ => None,
    });
    for name in single.chain(others).collect::<BTreeSet<_>>() {
        journal.record(Step::Sysctl(Sysctl { name, before: "1".to_owned(), set: "0".to_owned() }))?;
    }
    Ok(())
}

/// The names of the interfaces with settings, and `all` and `default`.
fn interfaces(folder: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(path(folder)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn is(name: &str, value: &str) -> bool {
    fs::read_to_string(path(name)).is_ok_and(|text| text.trim() == value)
}

fn write(name: &str, value: &str) -> Result<(), HostError> {
    tunable::write(name, value).map_err(|source| HostError::SysctlNotSet {
        name: name.replace('/', "."),
        value: value.to_owned(),
        source,
    })
}
