//! Stored keys come from the operating system's generator: no program of the workspace makes a stored key with a
//! generator in the process.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Generators with a state in the process.
const IN_PROCESS: [&str; 4] = ["rand::rng()", "rand::random", "make_rng", "ThreadRng"];

/// Allowed uses. A line with the second text is allowed in the folder of the first text (below `crates/`).
const ALLOWED: [(&str, &str); 6] = [
    // Ephemeral keys, session indices, cookie secrets and timer jitter are not stored.
    ("rustguard-device/src/control", "&mut rand::rng()"),
    // Nonces of path probes and pings.
    ("rustguard-device/src/control", "rand::random(), instant"),
    ("rustguard-device/src/control", "Probe::ping(rand::random())"),
    // The secret of the probes' tokens, which ends with the program.
    ("rustguard-device/src/control", "Search::new(rand::random())"),
    // Numbers that tell the answers to echo requests apart.
    ("rustguard-cli/src", "identifier: rand::random()"),
    ("rustguard-cli/src/commands", "let token: [u8; 16] = rand::random()"),
];

/// All Rust files below `folder` except tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// The lines of a file that draw from a generator in the process, with their numbers. Comments do not count: examples
/// in them may draw ephemeral keys from any generator. Test modules are at the end of a file.
fn suspects<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let production = text.lines().take_while(|line| line.trim_start() != "#[cfg(test)]");
    let suspect = |line: &str| {
        !line.trim_start().starts_with("//")
            && IN_PROCESS.iter().any(|generator| line.contains(generator))
            && !ALLOWED.iter().any(|(folder, allowed)| path.starts_with(folder) && line.contains(allowed))
    };
    production.enumerate().filter(|(_, line)| suspect(line)).map(|(n, line)| (n + 1, line)).collect()
}

#[test]
fn no_production_code_draws_keys_from_a_generator_in_the_process() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the folder of all crates");
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).expect("the folder of the crates can be read") {
        for part in ["src", "examples"] {
            let folder = entry.as_ref().expect("the folder can be read").path().join(part);
            if folder.is_dir() {
                sources(&folder, &mut files);
            }
        }
    }
    assert!(files.len() > 100, "only {} files were found", files.len());
    let mut found = String::new();
    for file in files {
        let path = file.strip_prefix(crates).expect("the file lies below").to_str().expect("the name is UTF-8");
        // The protocol's own examples show the argument `rng`, and their keys exist only while they run.
        if path.starts_with("rustguard-core/examples") || path.starts_with("rustguard-enroll/examples") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("the file can be read");
        for (line, text) in suspects(path, &text) {
            found += &format!("crates/{path}:{line}: {}\n", text.trim());
        }
    }
    assert!(found.is_empty(), "use `StaticSecret::generate`, `random::bytes` or `SystemRng`:\n{found}");
}

#[test]
fn the_check_sees_what_it_looks_for() {
    let bad = "fn key() {\n    StaticSecret::from_bytes(rand::random())\n}\n#[cfg(test)]\nmod tests { fn key() { rand::random() } }\n";
    assert_eq!(suspects("rustguard-cli/src/keys.rs", bad), [(2, "    StaticSecret::from_bytes(rand::random())")]);
    let ephemeral = "self.node.tick(now(), &mut rand::rng(), out);";
    assert_eq!(suspects("rustguard-device/src/control/engine.rs", ephemeral), []);
    assert_eq!(suspects("rustguard-serve/src/service.rs", ephemeral).len(), 1);
}
