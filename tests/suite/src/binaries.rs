//! The test binaries of the workspace: cargo builds them and says where they are.
use serde_json::Value;
use std::{
    env,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A test binary.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    /// For example `scenarios`. For the unit tests of a crate, the crate's name without the common beginning:
    /// `device`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The folder of its package, in which cargo runs it.
    pub(crate) folder: PathBuf,
}

/// All test binaries, and the program that they test.
pub(crate) struct Binaries {
    pub(crate) tests: Vec<Binary>,
    pub(crate) program: PathBuf,
    pub(crate) workspace: PathBuf,
    pub(crate) profile: String,
}

impl Binaries {
    /// Builds everything that `cargo test --workspace` runs, or only the part that scenarios need.
    pub(crate) fn build(profile: &str, only_scenarios: bool) -> Result<Self, String> {
        let workspace = workspace()?;
        let mut command = cargo(&workspace);
        command.args([
            "test",
            "--workspace",
            "--no-run",
            "--message-format=json-render-diagnostics",
            "--profile",
            profile,
        ]);
        if only_scenarios {
            // Building the tests of the command line also builds the program.
            command.args(["--test", "scenarios", "--test", "commands"]);
        }
        let mut child =
            command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cargo does not start: {error}"))?;
        let (mut tests, mut program) = (Vec::new(), None);
        for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
            let line = line.map_err(|error| format!("what cargo says cannot be read: {error}"))?;
            let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
            let Some(path) = message["executable"].as_str().map(PathBuf::from) else { continue };
            let target = &message["target"];
            if message["profile"]["test"] == true {
                tests.extend(binary(&message, path));
            } else if target["name"] == "rustguard" && target["kind"][0] == "bin" {
                program = Some(path);
            }
        }
        let status = child.wait().map_err(|error| format!("cargo: {error}"))?;
        if !status.success() {
            return Err("the tests do not build".to_owned());
        }
        tests.sort_by(|a: &Binary, b: &Binary| a.name.cmp(&b.name));
        let program = program.ok_or("cargo did not say where it put rustguard")?;
        Ok(Self { tests, program, workspace, profile: profile.to_owned() })
    }
}

fn binary(message: &Value, path: PathBuf) -> Option<Binary> {
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = manifest.parent()?.file_name()?.to_str()?.trim_start_matches("rustguard-").to_owned();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    let name = match kind {
        // For the workspace's own suites, the target's name suffices.
        "test" if ["tests", "benches"].contains(&&*package) => target.to_owned(),
        "test" => format!("{package}-{target}"),
        _ => package,
    };
    Some(Binary { name, path, folder: manifest.parent()?.to_owned() })
}

/// A command of cargo in the workspace. The variables that cargo set for this program itself could make build scripts
/// run again.
pub(crate) fn cargo(workspace: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH").current_dir(workspace);
    command
}

/// The folder of the workspace.
///
/// # Errors
/// If this program was built for another workspace. Cargo treats a copied target folder as up to date, so all tests in
/// it would look at the files of the original workspace.
fn workspace() -> Result<PathBuf, String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Some(here) = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from)
        // The same folder under another name, such as a link, is accepted.
        && here.canonicalize().ok() != built.canonicalize().ok()
    {
        let (here, built) = (here.display(), built.display());
        return Err(format!(
            "this was built in {built}, and runs in {here}: remove the copied target folder, or clone the workspace"
        ));
    }
    Ok(built.ancestors().nth(2).expect("tests/suite is in the workspace").to_owned())
}
