//! What a program that embeds a tunnel compiles: `cargo tree`.
use anyhow::{Result, ensure};
use std::{collections::BTreeSet, process::Command};

/// The crates that `arguments` name and everything they use, by name. Nothing is built, and nothing is fetched.
fn tree(arguments: &[&str]) -> Result<BTreeSet<String>> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--offline", "--edges", "normal", "--prefix", "none"]).args(arguments);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// What only an interface of the kernel, the set-up of a host or the reading of files needs.
const NOT_FOR_EMBEDDERS: [&str; 6] =
    ["rtnetlink", "netlink-packet-route", "netlink-proto", "zbus", "strsim", "rustguard-quick"];

#[test]
fn a_tunnel_over_own_transports_takes_no_netlink_and_no_d_bus() -> Result<()> {
    let crates = tree(&["--package", "rustguard-device", "--no-default-features"])?;
    ensure!(
        crates.contains("rustguard-core") && crates.contains("tokio"),
        "cargo tree lists something else: {crates:?}"
    );
    for name in NOT_FOR_EMBEDDERS {
        ensure!(!crates.contains(name), "rustguard-device without default features compiles {name}");
    }
    Ok(())
}

#[test]
fn a_tunnel_on_a_kernel_interface_takes_no_d_bus() -> Result<()> {
    let crates = tree(&["--package", "rustguard-device"])?;
    ensure!(crates.contains("rtnetlink"), "the feature `kernel` is on by default");
    for name in ["zbus", "strsim", "rustguard-quick"] {
        ensure!(!crates.contains(name), "rustguard-device compiles {name}");
    }
    Ok(())
}
