//! Checks with `cargo tree` which crates are compiled for the program and for an embedded tunnel, where they come from,
//! and under which licences.
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// The names of the crates that `arguments` select, and of everything that they and their build scripts use. Nothing is
/// built or fetched.
fn tree(arguments: &[&str]) -> Result<BTreeSet<String>> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none"]).args(arguments);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// Crates for kernel interfaces, host set-up or reading files. An embedded tunnel needs none of them.
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

/// Crates that build scripts use to compile C or to look for C libraries.
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

/// The licences that `deny.toml` allows.
fn allowed() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml"))?;
    let list = text
        .split_once("\nallow = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .context("deny.toml has no `allow`")?
        .0;
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Whether the allowed licences alone satisfy an SPDX expression. `/` is an old way to write `OR`.
fn can_be_kept(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Innermost parentheses first: their content is replaced by yes or no.
    if let Some((before, rest)) = expression.rsplit_once('(') {
        let Some((inner, after)) = rest.split_once(')') else { return false };
        let inner = if can_be_kept(inner, allowed) { "yes" } else { "no" };
        return can_be_kept(&format!("{before}{inner}{after}"), allowed);
    }
    let kept = |licence: &str| licence.trim() == "yes" || allowed.contains(licence.trim());
    // AND binds closer than OR.
    expression.replace('/', " OR ").split(" OR ").any(|all| all.split(" AND ").all(kept))
}

/// cargo-deny checks the same in the long run, and reads the licence files too. This test needs no additional tool.
#[test]
fn every_crate_has_an_allowed_licence_and_comes_from_the_registry() -> Result<()> {
    let allowed = allowed()?;
    ensure!(allowed.contains("MIT"), "{allowed:?}");
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--offline", "--format-version=1"]);
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    ensure!(packages.len() > 200, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in packages {
        let (name, licence) = (&package["name"], package["license"].as_str().unwrap_or_default());
        if !can_be_kept(licence, &allowed) {
            wrong.push(format!("{name}: the licence \"{licence}\""));
        }
        // The workspace's own crates have no source.
        if package["source"]
            .as_str()
            .is_some_and(|source| source != "registry+https://github.com/rust-lang/crates.io-index")
        {
            wrong.push(format!("{name}: from {}", package["source"]));
        }
        for dependency in
            package["dependencies"].as_array().into_iter().flatten().filter(|_| package["source"].is_null())
        {
            if dependency["req"] == "*" && dependency["path"].is_null() {
                wrong.push(format!("{name}: any version of {}", dependency["name"]));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn licences_are_read_as_spdx_means_them() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()]);
    for (expression, kept) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("(MIT AND GPL-3.0) OR BSL", false),
        ("Apache-2.0/MIT", true),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
    ] {
        assert_eq!(can_be_kept(expression, &allowed), kept, "{expression}");
    }
}
