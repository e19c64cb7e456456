//! What is compiled for the program, and for one that embeds a tunnel: `cargo tree`.
use anyhow::{Result, ensure};
use std::{collections::BTreeSet, process::Command};

/// The crates that `arguments` name and everything they and their build scripts use, by name. Nothing is built, and nothing is
/// fetched.
fn tree(arguments: &[&str]) -> Result<BTreeSet<String>> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none"]).args(arguments);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// What only an interface of the kernel, the set-up of a host or the reading of files needs.
const NOT_FOR_EMBEDDERS: [&str; 8] = [
    "rtnetlink",
    "netlink-packet-route",
    "netlink-proto",
    "zbus",
    "strsim",
    "rustguard-quick",
    "hyper",
    "prometheus-client",
];

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
    for name in ["zbus", "strsim", "rustguard-quick", "hyper", "prometheus-client"] {
        ensure!(!crates.contains(name), "rustguard-device compiles {name}");
    }
    Ok(())
}

#[test]
fn an_embedder_can_have_metrics_without_the_rest() -> Result<()> {
    let crates = tree(&["--package", "rustguard-metrics", "--no-default-features", "--features", "portable"])?;
    ensure!(crates.contains("hyper") && crates.contains("prometheus-client"), "{crates:?}");
    for name in ["rtnetlink", "zbus", "strsim", "rustguard-quick", "rustguard-serve"] {
        ensure!(!crates.contains(name), "rustguard-metrics compiles {name}");
    }
    Ok(())
}

/// Crates by which build scripts compile C or look for it.
const C: [&str; 6] = ["aws-lc-sys", "cc", "cmake", "bindgen", "pkg-config", "vcpkg"];

#[test]
fn the_portable_program_builds_without_a_c_compiler() -> Result<()> {
    let crates = tree(&["--package", "rustguard-cli", "--no-default-features", "--features", "portable"])?;
    for name in C {
        ensure!(!crates.contains(name), "the feature `portable` compiles {name}");
    }
    for name in ["rustguard-crypto", "x25519-dalek", "ml-kem"] {
        ensure!(crates.contains(name), "cargo tree lists something else: {crates:?}");
    }
    Ok(())
}

#[test]
fn the_default_program_has_its_cryptography_from_aws_lc() -> Result<()> {
    let crates = tree(&["--package", "rustguard-cli"])?;
    for name in ["aws-lc-sys", "cc", "cmake"] {
        ensure!(crates.contains(name), "cargo tree does not see {name}: {crates:?}");
    }
    for name in ["x25519-dalek", "ml-kem"] {
        ensure!(!crates.contains(name), "{name} is compiled beside AWS-LC");
    }
    Ok(())
}
