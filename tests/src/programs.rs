//! The paths of the programs: RustGuard (built on request), wireguard-go, and the tools of the system.
use crate::Lab;
use anyhow::{Context, Result, ensure};
use std::{
    env,
    error::Error,
    fmt, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The program of a tunnel in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The program under test.
    Subject,
    /// wireguard-go.
    Reference,
}

/// The program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// This workspace's program.
    RustGuard,
    /// The reference itself, which tests the laboratory.
    WireguardGo,
}

/// The program under test, from `RUSTGUARD_SUBJECT`.
///
/// # Panics
/// If the variable has an unknown value.
pub fn subject() -> Subject {
    match env::var("RUSTGUARD_SUBJECT").as_deref() {
        Err(_) | Ok("" | "rustguard") => Subject::RustGuard,
        Ok("wireguard-go") => Subject::WireguardGo,
        Ok(other) => panic!("RUSTGUARD_SUBJECT is \"{other}\": rustguard or wireguard-go"),
    }
}

/// The path of RustGuard: `RUSTGUARD_BIN`, or else one build in the profile of the tests. `cargo test --workspace` has
/// already made this build, and its debug assertions and overflow checks are on.
pub fn rustguard() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(path) = env::var_os("RUSTGUARD_BIN") {
        return Ok(PathBuf::from(path));
    }
    BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}"))).clone().map_err(anyhow::Error::msg)
}

/// A copy that every user may run, because the folder of the checkout may be closed to others.
pub fn program_for_everybody(lab: &Lab) -> Result<PathBuf> {
    let copy = lab.path("rustguard");
    fs::copy(rustguard()?, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}

fn build() -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's folder")?;
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The same command as `cargo test --workspace` uses for this test of the program's own crate. Another selection of
    // packages would build the dependencies again with other features.
    command.args(["test", "--workspace", "--no-run", "--test", "commands", "--message-format=json-render-diagnostics"]);
    command.args(["--profile", &profile()?]);
    // Cargo's variables for this test are removed, because they could make build scripts run again.
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    let output = command.env_remove("CARGO_MANIFEST_DIR").current_dir(workspace).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "rustguard-cli does not build");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "rustguard")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo did not say where it put rustguard")
}

/// The profile of this test's build. Cargo names the folder after it (`target/PROFILE/deps/TEST`), except for `dev`,
/// whose folder is `debug`.
fn profile() -> Result<String> {
    let test = env::current_exe()?;
    let folder = test.ancestors().nth(2).and_then(Path::file_name).context("the folder of this test's profile")?;
    let name = folder.to_str().context("the profile's name is UTF-8")?;
    Ok(if name == "debug" { "dev" } else { name }.to_owned())
}

/// The path of wireguard-go: `RUSTGUARD_WIREGUARD_GO`, or else `wireguard-go` or `wireguard` (its name after `go
/// install`) in `PATH` or Go's `bin` folder.
pub fn wireguard_go() -> Result<PathBuf> {
    if let Some(path) = env::var_os("RUSTGUARD_WIREGUARD_GO") {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "RUSTGUARD_WIREGUARD_GO: {} is not there", path.display());
        return Ok(path);
    }
    let mut folders: Vec<PathBuf> = env::var_os("PATH").iter().flat_map(env::split_paths).collect();
    folders.extend(env::var_os("GOBIN").map(PathBuf::from));
    folders.extend(env::var_os("GOPATH").map(|path| PathBuf::from(path).join("bin")));
    folders.extend(env::var_os("HOME").map(|path| PathBuf::from(path).join("go/bin")));
    folders
        .iter()
        .flat_map(|folder| ["wireguard-go", "wireguard"].map(|name| folder.join(name)))
        .find(|path| path.is_file())
        .ok_or_else(|| Missing("no wireguard-go: go install golang.zx2c4.com/wireguard@latest".to_owned()).into())
}

/// Something that this machine lacks. A scenario that ends with this error is skipped; with `CI=true`, it fails.
#[derive(Debug)]
pub struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Missing {}

/// Checks that the programs that nearly every scenario uses are installed.
pub(crate) fn prerequisites() -> Result<(), Missing> {
    tools_of_a_lab()?;
    in_path(&[("nft", "nftables"), ("ping", "iputils-ping")])
}

/// Checks that the programs that create nodes and keys are installed.
pub(crate) fn tools_of_a_lab() -> Result<(), Missing> {
    in_path(&[("unshare", "util-linux"), ("ip", "iproute2"), ("wg", "wireguard-tools"), ("sysctl", "procps")])
}

/// Checks that programs are installed. Each is given with its Debian package.
pub(crate) fn in_path(programs: &[(&str, &str)]) -> Result<(), Missing> {
    for (program, package) in programs {
        let found =
            env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()));
        if !found {
            return Err(Missing(format!("no {program}: apt install {package}")));
        }
    }
    Ok(())
}
