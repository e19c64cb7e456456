//! The policy of a network on its server. Its file lies beside the files of the interfaces.

mod put;

pub use put::PutPolicy;
pub(crate) use put::{policy_text, put_policy_text};
use rustguard_network::roster::{
    member::Role,
    roster::{MAX_SHEET, Roster},
};
use rustguard_policy::{
    diagnostic::{Diagnostic, Severity},
    directory::Directory,
    policy::{MAX_POLICY, Policy},
    rules::Rules,
    sheet,
};
use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::watch;

/// Every policy that the parser accepts can be distributed.
const _: () = assert!(sheet::MAX_SHEET <= MAX_SHEET);

/// The file of the policy of a network.
pub fn policy_path(interface: &str) -> PathBuf {
    Path::new("/etc/rustguard").join(format!("{interface}.policy"))
}

/// A policy that a server enforces.
#[derive(Debug)]
#[non_exhaustive]
pub struct InForce {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The machines that its names and tags mean.
    pub machines: Directory,
    /// The enforced rules. These are all rules of the policy, because a server enforces them for itself and for all
    /// traffic of its stock clients.
    pub rules: Arc<Rules>,
}

impl InForce {
    /// The policy with these machines.
    pub fn new(policy: Arc<Policy>, machines: Directory) -> Self {
        let rules = Arc::new(policy.all(&machines));
        Self { policy, machines, rules }
    }
}

/// The policy of a running server, for display.
#[derive(Clone, Debug)]
pub struct PolicyHandle {
    file: PathBuf,
    in_force: watch::Receiver<Option<Arc<InForce>>>,
}

impl PolicyHandle {
    /// The policy in this file. `in_force` has the version that is in force.
    pub fn new(file: PathBuf, in_force: watch::Receiver<Option<Arc<InForce>>>) -> Self {
        Self { file, in_force }
    }

    /// The file. Its contents may have changed since it was read.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The policy that is in force; `None` if everything is allowed.
    pub fn in_force(&self) -> Option<Arc<InForce>> {
        self.in_force.borrow().clone()
    }
}

/// Why a policy is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy {path}: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The file cannot be put into its place.
    #[error("cannot {doing} {path}: {cause}")]
    Put {
        /// The step that failed.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// Every user of this machine may change it.
    #[error("everybody on this machine may change the policy {path}: chmod 644 {path}", path = .0.display())]
    Writable(PathBuf),
    /// It has mistakes, or one of its tests fails.
    #[error("{path}:{first}{}; to see all of it: rustguard policy check {path}", more(*.others))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The first mistake.
        first: Box<Diagnostic>,
        /// How many others there are.
        others: usize,
    },
    /// The network has a policy, and its file is missing. Treating this as no policy would allow everything by mistake.
    #[error(
        "this network has a policy, and its file {path} is gone: put it back. To end the policy: write `allow * -> *` into that file, run \
         `rustguard reload`, and remove the file then",
        path = .0.display()
    )]
    Gone(PathBuf),
    /// A star has no members that could enforce it.
    #[error("there is a policy, {path}, and a star has none: start without --star and --isolate, or move that file away", path = .0.display())]
    Star(PathBuf),
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more)") }
}

/// Reads the policy in a file. `None` if there is no such file.
///
/// # Errors
/// See [`PolicyError`].
pub fn read_policy(path: &Path) -> Result<Option<Policy>, PolicyError> {
    let Some(text) = read_policy_text(path)? else { return Ok(None) };
    let (policy, diagnostics) = Policy::parse(&text);
    policy.map(Some).ok_or_else(|| wrong(path, diagnostics))
}

/// Reads the text in the file of a policy, which may have mistakes. `None` if there is no such file.
///
/// # Errors
/// See [`PolicyError`].
pub fn read_policy_text(path: &Path) -> Result<Option<String>, PolicyError> {
    let unreadable = |cause| PolicyError::Unreadable { path: path.to_owned(), cause };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    if file.metadata().map_err(unreadable)?.mode() & 0o002 != 0 {
        return Err(PolicyError::Writable(path.to_owned()));
    }
    let mut text = String::new();
    file.take(MAX_POLICY as u64 + 1).read_to_string(&mut text).map_err(unreadable)?;
    Ok(Some(text))
}

/// Checks a policy with the present machines, and logs names that no machine has. A policy that is already in force is
/// not refused: the tag, name or machine that a test needs may be gone. A failed test is then logged.
///
/// # Errors
/// [`PolicyError::Wrong`] if a test fails, and the policy is not in force yet.
pub(crate) fn check(path: &Path, policy: &Policy, directory: &Directory, is_in_force: bool) -> Result<(), PolicyError> {
    const LOGGED: usize = 16;
    let (errors, warnings): (Vec<_>, Vec<_>) =
        policy.check(directory).into_iter().partition(|diagnostic| diagnostic.severity == Severity::Error);
    if !errors.is_empty() && !is_in_force {
        return Err(wrong(path, errors));
    }
    for error in errors.iter().take(LOGGED) {
        tracing::warn!("{}:{error}; the policy is in force already, and stays so", path.display());
    }
    warnings.iter().take(LOGGED).for_each(|warning| tracing::warn!("{}:{warning}", path.display()));
    let more = errors.len().saturating_sub(LOGGED) + warnings.len().saturating_sub(LOGGED);
    if more > 0 {
        tracing::warn!("{more} more; rustguard policy check {}", path.display());
    }
    Ok(())
}

fn wrong(path: &Path, diagnostics: Vec<Diagnostic>) -> PolicyError {
    let mut errors = diagnostics.into_iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
    let first = Box::new(errors.next().expect("a policy is refused for a mistake"));
    PolicyError::Wrong { path: path.to_owned(), first, others: errors.count() }
}

/// Reads the policy that replaces the one in `last`.
///
/// # Errors
/// See [`PolicyError`].
pub(crate) fn next(path: &Path, last: Option<&Roster>) -> Result<Option<Arc<Policy>>, PolicyError> {
    let policy = read_policy(path)?.map(Arc::new);
    if policy.is_none() && last.is_some_and(restricts) {
        return Err(PolicyError::Gone(path.to_owned()));
    }
    Ok(policy)
}

/// Whether the members of this roster enforce this policy.
pub(crate) fn is_in_force(roster: Option<&Roster>, policy: Option<&Policy>) -> bool {
    let Some(policy) = policy else { return !roster.is_some_and(restricts) };
    let servers = roster.into_iter().flat_map(|roster| {
        roster.members().filter(|member| member.role == Role::Server && member.has_sheet()).map(|it| roster.sheet(it))
    });
    let mut sheets = servers.map(|sheet| sheet.and_then(|sheet| sheet::Sheet::from_bytes(sheet)));
    sheets.next().flatten().is_some_and(|sheet| sheet.is_all_of(policy))
}

/// Whether the policy of a roster refuses anything. The sheet of a server has the whole policy.
fn restricts(roster: &Roster) -> bool {
    let mut sheets = roster.members().filter(|member| member.has_sheet()).map(|member| roster.sheet(member)).peekable();
    let allows = |sheet: Option<&Arc<[u8]>>| {
        let sheet = sheet.and_then(|sheet| sheet::Sheet::from_bytes(sheet));
        sheet.is_some_and(|sheet| sheet.allows_everything())
    };
    sheets.peek().is_some() && !sheets.all(allows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustguard_crypto::x25519::PublicKey;
    use rustguard_network::roster::{key::NetworkSecret, member::Member, settings::Settings};
    use std::{fs, os::unix::fs::PermissionsExt as _};

    fn roster(sheet: Option<&str>) -> Roster {
        let member = Member::new(PublicKey([1; 32]), "hub".parse().unwrap()).with_role(Role::Server);
        let member = sheet.map_or(member.clone(), |sheet| member.with_sheet(sheet.as_bytes()));
        let sheets = sheet.map(|sheet| sheet.as_bytes().into());
        let settings = Settings::new("rg0".parse().unwrap());
        Roster::issue_with_sheets(&NetworkSecret::from_bytes(&[7; 32]), 1, 0, settings, [Arc::new(member)], sheets)
            .unwrap()
    }

    #[test]
    fn a_lost_file_does_not_let_everybody_talk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rg0.policy");
        let next = |roster: Option<&Roster>| next(&path, roster).map_err(|error| error.to_string());
        assert_eq!((next(None), next(Some(&roster(None)))), (Ok(None), Ok(None)), "as before there were policies");
        let refused = roster(Some("rustguard policy 1\n1 allow * -> * icmp\n"));
        assert!(next(Some(&refused)).unwrap_err().contains("is gone: put it back"));
        assert!(next(Some(&roster(Some("rustguard policy 1\n")))).is_err(), "nothing may come");
        assert!(next(Some(&roster(Some("rustguard policy 2\n1 allow * -> *\n")))).is_err(), "of a later version");
        let ended = roster(Some("rustguard policy 1\n1 allow * -> *\n"));
        assert_eq!(next(Some(&ended)), Ok(None));
    }

    #[test]
    fn a_wrong_policy_is_refused_with_the_place_of_its_first_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rg0.policy");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read_policy(&path).map_err(|error| error.to_string().replace(dir.path().to_str().unwrap(), ""))
        };
        assert!(read("allow * -> *").unwrap().unwrap().allows_everything());
        assert_eq!(
            read("allow a -> b\nalow b\ntest").unwrap_err(),
            "/rg0.policy:2:1: a line begins with allow, test or group, and not with `alow`; did you mean `allow`? (and 1 more); to see all of it: \
             rustguard policy check /rg0.policy"
        );
        fs::write(&path, b"allow \xff -> b").unwrap();
        assert!(read_policy(&path).unwrap_err().to_string().starts_with("cannot read the policy"));
        fs::write(&path, "allow * -> *").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read_policy(&path).unwrap_err().to_string().contains("chmod 644"));
    }

    #[test]
    fn a_policy_whose_test_fails_is_not_taken() {
        let policy = Policy::parse("allow a -> b\ntest 10.0.0.1 -> 10.0.0.2 tcp/1 allowed").0.unwrap();
        let check = |policy: &Policy, is_in_force| check(Path::new("p"), policy, &Directory::default(), is_in_force);
        let wrong = check(&policy, false).unwrap_err().to_string();
        assert!(wrong.starts_with("p:2:1: this test fails for 10.0.0.1 -> 10.0.0.2: no line allows it"), "{wrong}");
        assert!(check(&policy, true).is_ok(), "members enforce it, and a test may fail because a machine is gone");
        assert!(check(&Policy::parse("allow a -> b").0.unwrap(), false).is_ok(), "nobody has joined yet");
    }

    #[test]
    fn what_members_enforce_is_known_by_the_sheet_of_a_server() {
        let of = |text: &str| Policy::parse(text).0.unwrap();
        let known = roster(Some("rustguard policy 1\n1 allow a -> b tcp/1\n2 allow b -> a\n"));
        let moved = of("group g = a\n# a comment\nallow g -> b tcp/1\n\nallow b -> a\ntest a -> b allowed");
        assert!(is_in_force(Some(&known), Some(&moved)), "lines, groups, comments and tests change nothing");
        for other in ["allow a -> b tcp/1", "allow b -> a\nallow a -> b tcp/1", "allow a -> b tcp/2\nallow b -> a", ""]
        {
            assert!(!is_in_force(Some(&known), Some(&of(other))), "{other}");
        }
        assert!(!is_in_force(Some(&known), None) && !is_in_force(None, Some(&moved)));
        assert!(is_in_force(None, None) && is_in_force(Some(&roster(None)), None));
        assert!(!is_in_force(Some(&roster(None)), Some(&moved)));
    }
}
