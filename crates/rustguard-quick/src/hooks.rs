//! PreUp, PostUp, PreDown, PostDown.

use crate::{
    chain::chain,
    helper::{self, Answer, Task, When, unexpected},
    program::Program,
};
use std::{
    io,
    os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::process::Command;

/// The time for one hook. Longer work belongs into the background (`… &`), where it has no limit.
const LIMIT: Duration = Duration::from_secs(300);

/// The destination of the hooks' standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookOutput {
    /// The standard output of this process, as under wg-quick.
    #[default]
    Inherit,
    /// The standard error of this process, if the program uses its standard output for something else.
    Stderr,
}

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The shell could not be started.
    #[error("{key} hook `{hook}` cannot be run")]
    NotRun {
        /// The key in the file: `PreUp`, …
        key: &'static str,
        /// The command.
        hook: String,
        /// The cause.
        source: io::Error,
    },
    /// The command took too long, and was ended with everything that it had started.
    #[error("{key} hook `{hook}` has not ended in {} s and was killed; put what takes longer into the background (`… &`)", limit.as_secs())]
    TimedOut {
        /// The key in the file: `PreUp`, …
        key: &'static str,
        /// The command.
        hook: String,
        /// The limit.
        limit: Duration,
    },
    /// The command ended with an error.
    #[error("{key} hook `{hook}` failed: {status}")]
    Failed {
        /// The key in the file: `PreUp`, …
        key: &'static str,
        /// The command.
        hook: String,
        /// The exit status of the command.
        status: ExitStatus,
    },
}

/// The environment of hooks.
#[derive(Clone, Copy)]
pub(crate) struct Hooks<'a> {
    /// `%i`, and `INTERFACE` in the environment.
    pub(crate) interface: &'a str,
    /// `CONFIG_FILE` in the environment: the absolute path of the file with the hooks.
    pub(crate) file: Option<&'a Path>,
    pub(crate) output: HookOutput,
}

impl Hooks<'_> {
    /// Runs hooks in order, with `%i` replaced as in wg-quick. The first failure ends the run.
    pub(crate) async fn run(self, key: &'static str, hooks: &[String]) -> Result<(), HookError> {
        for hook in hooks {
            self.run_one(key, hook, LIMIT).await?;
        }
        Ok(())
    }

    /// Runs hooks of a tunnel that was killed. The changes that these hooks undo would otherwise remain, so each of
    /// them runs. Failures are logged.
    pub(crate) async fn run_late(self, key: &'static str, hooks: &[String]) {
        for hook in hooks {
            if let Err(error) = self.run_one(key, hook, LIMIT).await {
                tracing::warn!(
                    "{} was killed: its {}; run by hand what is still needed",
                    self.interface,
                    chain(&error)
                );
            }
        }
    }

    async fn run_one(self, key: &'static str, hook: &str, limit: Duration) -> Result<(), HookError> {
        let text = hook.replace("%i", self.interface);
        tracing::info!("[#] {text}");
        match (helper::get(), When::of_key(key)) {
            (Some(helper), Some(when)) => {
                let command = hook.to_owned();
                match helper.ask(Task::Hook { when, command }).await {
                    Answer::Ended(0) => Ok(()),
                    Answer::Ended(status) => {
                        Err(HookError::Failed { key, hook: text, status: ExitStatus::from_raw(status) })
                    }
                    Answer::TimedOut => Err(HookError::TimedOut { key, hook: text, limit }),
                    Answer::Failed(failure) => Err(HookError::NotRun { key, hook: text, source: failure.into_io() }),
                    answer => Err(HookError::NotRun { key, hook: text, source: unexpected(&answer) }),
                }
            }
            _ => self.run_within(key, text, limit).await,
        }
    }

    /// Runs a hook in this process itself. `%i` is replaced already.
    pub(crate) async fn run_here(self, key: &'static str, hook: &str) -> Result<(), HookError> {
        self.run_within(key, hook.to_owned(), LIMIT).await
    }

    async fn run_within(self, key: &'static str, hook: String, limit: Duration) -> Result<(), HookError> {
        let status = async { Program::start(&mut self.shell(&hook)?)?.wait(limit).await };
        match status.await {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(HookError::Failed { key, hook, status }),
            Ok(None) => Err(HookError::TimedOut { key, hook, limit }),
            Err(source) => Err(HookError::NotRun { key, hook, source }),
        }
    }

    /// wg-quick runs hooks with bash and these settings: the first failing command ends the hook, also in a pipe, so
    /// that a kill switch with a mistake fails. Without bash, the system's shell runs them, which may not detect
    /// failures in pipes.
    fn shell(self, script: &str) -> io::Result<Command> {
        let (shell, settings): (_, &[&str]) = match Path::new("/bin/bash").exists() {
            true => ("/bin/bash", &["-e", "-o", "pipefail", "-O", "extglob", "-c"]),
            false => ("/bin/sh", &["-e", "-c"]),
        };
        let mut command = Command::new(shell);
        command.args(settings).arg(script).stdin(Stdio::null()).env("INTERFACE", self.interface).env("LC_ALL", "C");
        match self.file {
            Some(file) => command.env("CONFIG_FILE", file),
            None => command.env_remove("CONFIG_FILE"),
        };
        if self.output == HookOutput::Stderr {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn alive(id: &str) -> bool {
        // A zombie process counts as ended.
        let stat = fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
    }

    fn hooks(interface: &str) -> Hooks<'_> {
        Hooks { interface, file: None, output: HookOutput::Inherit }
    }

    async fn until(what: impl Fn() -> bool) {
        let waited = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waited).await.expect("in time");
    }

    /// As in wg-quick, whose `set -e -o pipefail` and `shopt -s extglob` apply to hooks as well.
    #[tokio::test]
    async fn a_command_of_a_hook_that_fails_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        for hook in ["false; true", "false | true", "grep -q a <<<b | cat", "(exit 3); echo on"] {
            let error = hooks("wg0").run("PostUp", &[format!("{hook}; touch {}", out.display())]).await.unwrap_err();
            assert!(matches!(error, HookError::Failed { .. }), "{hook}: {error}");
            assert!(!out.exists(), "{hook}: it went on");
        }
        let fine = [
            "false || true",
            "if false; then exit 1; fi",
            "! true || true",
            "[[ wg0 == @(wg0|wg1) ]]",
            "[ $LC_ALL = C ]",
        ];
        for hook in fine {
            hooks("wg0").run("PostUp", &[hook.to_owned()]).await.unwrap_or_else(|error| panic!("{hook}: {error}"));
        }
    }

    #[tokio::test]
    async fn a_hook_is_told_about_its_tunnel() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let hook = format!("echo %i $INTERFACE ${{CONFIG_FILE-none}} > {}", out.display());
        hooks("wg7").run("PreUp", std::slice::from_ref(&hook)).await.unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), "wg7 wg7 none\n");
        let with_file = Hooks { file: Some(Path::new("/etc/wireguard/wg7.conf")), ..hooks("wg7") };
        with_file.run("PreUp", &[hook]).await.unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), "wg7 wg7 /etc/wireguard/wg7.conf\n");
    }

    #[tokio::test]
    async fn a_daemon_that_a_hook_starts_lives_on() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("pid");
        hooks("wg7").run("PostUp", &[format!("sleep 60 & echo $! > {}", out.display())]).await.unwrap();
        let id = fs::read_to_string(&out).unwrap();
        assert!(alive(&id), "the daemon was killed with its hook");
        hooks("wg7").run("PreDown", &[format!("kill {id}")]).await.unwrap();
        until(|| !alive(&id)).await;
    }

    #[tokio::test]
    async fn a_hook_that_hangs_ends_with_all_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("pid");
        // The shell and its child processes ignore SIGTERM.
        let hook = format!("trap '' TERM; sleep 60 & echo $! > {}; sleep 61", out.display());
        // On a loaded machine, the shell may not get that far at once.
        let mut limit = Duration::from_millis(300);
        let id = loop {
            let error = hooks("wg7").run_one("PostUp", &hook, limit).await.unwrap_err();
            assert!(matches!(error, HookError::TimedOut { .. }) && error.to_string().contains("PostUp"), "{error}");
            match fs::read_to_string(&out) {
                Ok(id) if id.ends_with('\n') => break id,
                _ => limit *= 2,
            }
            assert!(limit < Duration::from_secs(60), "no shell in {limit:?}");
        };
        until(|| !alive(&id)).await;
    }

    #[tokio::test]
    async fn a_hook_ends_with_the_tunnel_that_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("pid");
        let hook = [format!("sleep 60 & echo $! > {}; wait", out.display())];
        tokio::select! {
            _ = hooks("wg7").run("PreUp", &hook) => panic!("it takes a minute"),
            () = until(|| fs::read_to_string(&out).is_ok_and(|id| id.ends_with('\n'))) => {}
        }
        let id = fs::read_to_string(&out).unwrap();
        until(|| !alive(&id)).await;
    }
}
