//! Hooks: their environment, and their fate when a tunnel is killed.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, Ended, Lab, Node, Process, eventually, scenario_of_rustguard, spawn_until_ready};
use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

/// A tunnel whose hooks write into `hooks.txt`.
struct Hooked {
    node: Node,
    file: PathBuf,
    record: PathBuf,
}

impl Hooked {
    fn new(lab: &Lab, more: &[&str]) -> Result<Self> {
        let mut conf = Conf::new("wga")?;
        let record = lab.path("hooks.txt");
        for (key, word) in [("PostUp", "post-up"), ("PreDown", "pre-down"), ("PostDown", "post-down")] {
            conf.lines.push(format!("{key} = echo {word} $INTERFACE $CONFIG_FILE >> {}", record.display()));
        }
        conf.lines.extend(more.iter().map(ToString::to_string));
        Ok(Self { node: lab.node("a")?, file: lab.file("wga.conf", &conf.wg_quick())?, record })
    }

    fn up(&self, lab: &Lab) -> Result<Process> {
        spawn_until_ready(lab, &self.node, "wga", self.node.rustguard()?.arg("up").arg(&self.file))
    }

    fn rustguard(&self, words: &[&str]) -> Result<Ended> {
        self.node.end_of(self.node.rustguard()?.args(words).arg(&self.file))
    }

    /// The words that the hooks wrote since the last call.
    fn wrote(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.record).unwrap_or_default();
        fs::write(&self.record, "")?;
        let told = format!(" wga {}", self.file.display());
        let word = |line: &str| line.strip_suffix(&told).map_or_else(|| format!("not told: {line}"), str::to_owned);
        Ok(text.lines().map(word).collect())
    }
}

#[test]
fn hooks_are_told_interface_and_file() {
    scenario_of_rustguard("INTERFACE and CONFIG_FILE", |lab| {
        let hooked = Hooked::new(lab, &[])?;
        hooked.up(lab)?.stop("TERM")?;
        let wrote = hooked.wrote()?;
        ensure!(wrote == ["post-up", "pre-down", "post-down"], "{wrote:?}");
        Ok(())
    });
}

/// A relative path is relative to the folder in which `up` was called, in the foreground and in the background.
#[test]
fn hooks_run_in_the_folder_of_up() {
    scenario_of_rustguard("hooks", |lab| {
        let hooked = Hooked::new(lab, &["PostUp = pwd >> said.txt", "PostDown = pwd >> said.txt"])?;
        let folder = lab.path("folder");
        fs::create_dir(&folder)?;
        let mut up = hooked.node.rustguard()?;
        spawn_until_ready(lab, &hooked.node, "wga", up.arg("up").arg(&hooked.file).current_dir(&folder))?
            .stop("TERM")?;
        let mut up = hooked.node.rustguard()?;
        let ended = hooked.node.end_of(up.args(["up", "--detach"]).arg(&hooked.file).current_dir(&folder))?;
        ensure!(ended.success(), "{ended}");
        let ended = hooked.rustguard(&["down"])?;
        ensure!(ended.success(), "{ended}");
        let said = fs::read_to_string(folder.join("said.txt"))?;
        ensure!(said == format!("{}\n", folder.display()).repeat(4), "{said}");
        Ok(())
    });
}

/// The hooks of a killed tunnel run once, at the next `down` or `up`, and failing hooks are named.
#[test]
fn hooks_of_a_killed_tunnel_run_at_the_next_down_or_up() {
    scenario_of_rustguard("hooks after a crash", |lab| {
        let hooked = Hooked::new(lab, &["PreDown = ip link set wga down", "PostDown = false"])?;
        hooked.up(lab)?.stop("KILL")?;
        ensure!(hooked.wrote()? == ["post-up"]);
        // The file has changed since the tunnel was started.
        let text = fs::read_to_string(&hooked.file)?;
        fs::write(&hooked.file, text.replace("-down", "-other"))?;
        let down = hooked.rustguard(&["down"])?;
        ensure!(down.success(), "{down}");
        down.says(&["wga", "PreDown hook `ip link set wga down` failed", "PostDown hook `false` failed"])?;
        let wrote = hooked.wrote()?;
        ensure!(wrote == ["pre-down", "post-down"], "{wrote:?}");
        hooked.rustguard(&["down"])?.refused(&["not up"])?;
        // By its name alone, the tunnel has no file.
        let named = hooked.node.end_of(hooked.node.rustguard()?.args(["down", "wga"]))?;
        named.refused(&["wga is not up", "rustguard show"])?;
        ensure!(hooked.wrote()?.is_empty(), "only once");

        fs::write(&hooked.file, text)?;
        hooked.up(lab)?.stop("KILL")?;
        hooked.wrote()?;
        hooked.up(lab)?.stop("TERM")?;
        let wrote = hooked.wrote()?;
        ensure!(wrote == ["pre-down", "post-down", "post-up", "pre-down", "post-down"], "{wrote:?}");

        // It is the only tunnel, so it needs no name.
        hooked.up(lab)?.stop("KILL")?;
        hooked.wrote()?;
        let down = hooked.node.end_of(hooked.node.rustguard()?.arg("down"))?;
        ensure!(down.success() && hooked.wrote()? == ["pre-down", "post-down"], "{down}");

        // Also by the name alone, after the file was deleted.
        hooked.up(lab)?.stop("KILL")?;
        hooked.wrote()?;
        fs::remove_file(&hooked.file)?;
        let down = hooked.node.end_of(hooked.node.rustguard()?.args(["down", "wga"]))?;
        ensure!(down.success() && hooked.wrote()? == ["pre-down", "post-down"], "{down}");
        Ok(())
    });
}

/// Commands run only from a record that nobody else could change, and commands that do not run are listed.
#[test]
fn a_record_that_others_may_change_runs_nothing() {
    scenario_of_rustguard("hooks after a crash", |lab| {
        let hooked = Hooked::new(lab, &[])?;
        hooked.up(lab)?.stop("KILL")?;
        hooked.wrote()?;
        fs::set_permissions("/run/rustguard-hooks/wga", fs::Permissions::from_mode(0o666))?;
        let down = hooked.rustguard(&["down"])?;
        down.says(&["echo pre-down", "echo post-down", "does not run", "others may change"])?;
        ensure!(hooked.wrote()?.is_empty(), "commands of others ran");
        Ok(())
    });
}

/// Changes are undone only from a record that nobody else could write. PreDown has run by then, and PostDown waits.
#[test]
fn a_record_of_others_undoes_nothing_and_no_hook_runs_twice() {
    scenario_of_rustguard("hooks after a crash", |lab| {
        let hooked = Hooked::new(lab, &[])?;
        hooked.up(lab)?.stop("KILL")?;
        hooked.wrote()?;
        let steps = "/run/rustguard/wga.json";
        fs::write(steps, "{}")?;
        fs::set_permissions(steps, fs::Permissions::from_mode(0o666))?;
        for wanted in [&["pre-down"][..], &[]] {
            hooked.rustguard(&["down"])?.refused(&["others may change /run/rustguard/wga.json"])?;
            let wrote = hooked.wrote()?;
            ensure!(wrote == wanted, "{wrote:?}");
        }
        fs::remove_file(steps)?;
        let down = hooked.rustguard(&["down"])?;
        let wrote = hooked.wrote()?;
        ensure!(down.success() && wrote == ["post-down"], "{down}{wrote:?}");
        Ok(())
    });
}

/// Ending a tunnel while a hook hangs also ends the hook, and everything is undone.
#[test]
fn a_hanging_hook_ends_with_the_tunnel() {
    scenario_of_rustguard("hanging hooks", |lab| {
        let id = lab.path("id");
        let hooked = Hooked::new(lab, &[&format!("PostUp = sleep 1000 & echo $! > {}; wait", id.display())])?;
        let before = hooked.node.traces()?;
        let mut process = hooked.node.spawn("wga", hooked.node.rustguard()?.arg("up").arg(&hooked.file))?;
        process.until("the hook", Duration::from_secs(10), || {
            Ok(fs::read_to_string(&id).is_ok_and(|text| text.ends_with('\n')))
        })?;
        process.stop("TERM")?.says(&["SIGTERM"])?;
        let id = fs::read_to_string(&id)?;
        eventually("the hook has ended", Duration::from_secs(5), || {
            let status = fs::read_to_string(format!("/proc/{}/status", id.trim())).unwrap_or_default();
            Ok(status.is_empty() || status.contains("State:\tZ"))
        })?;
        let wrote = hooked.wrote()?;
        ensure!(wrote == ["post-up", "pre-down", "post-down"], "{wrote:?}");
        ensure!(hooked.node.traces()? == before, "left behind: {}", hooked.node.traces()?);
        Ok(())
    });
}

/// A second `up` says where the log of the first is, and does not change it; a failed start keeps the log of a crash.
#[test]
fn the_log_survives_a_second_up() {
    scenario_of_rustguard("the log", |lab| {
        let hooked = Hooked::new(lab, &[])?;
        let log = "/run/rustguard/wga.log";
        let up = hooked.rustguard(&["up", "--detach"])?;
        ensure!(up.success(), "{up}");
        let before = fs::read_to_string(log)?;
        ensure!(before.contains("wga is up"), "{before}");
        for words in [&["up", "--detach"][..], &["up"]] {
            hooked.rustguard(words)?.refused(&["wga is up already", log])?;
        }
        ensure!(fs::read_to_string(log)? == before, "the log changed: {}", fs::read_to_string(log)?);
        let id = fs::read_to_string("/run/rustguard/wga.pid")?;
        hooked.node.run(&["kill", "-KILL", id.trim()])?;
        eventually("the end", Duration::from_secs(5), || Ok(hooked.node.run(&["ip", "link", "show", "wga"]).is_err()))?;
        let text = fs::read_to_string(&hooked.file)?;
        fs::write(&hooked.file, "[Interface]\nPort = 1\n")?;
        ensure!(!hooked.rustguard(&["up", "--detach"])?.success(), "a file with a mistake");
        ensure!(fs::read_to_string(log)?.starts_with(&before), "the log of the crash is gone");
        fs::write(&hooked.file, text)?;
        Ok(())
    });
}
