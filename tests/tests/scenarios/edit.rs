//! `rustguard edit`: the editor gets a private copy, mistakes are shown, and a running tunnel takes the file over.
//! Also: closing the terminal of a tunnel.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Conf, Lab, Node, eventually, rustguard, scenario_of_rustguard, spawn_until_ready};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(20);

fn tunnel(lab: &Lab) -> Result<(Node, PathBuf)> {
    let mut conf = Conf::new("wga")?;
    conf.addresses = vec!["10.9.0.1/24".to_owned()];
    conf.lines = vec!["# What people wrote.".to_owned()];
    conf.listen_port = Some(51_801);
    let file = lab.file("wga.conf", &conf.wg_quick())?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
    Ok((lab.node("a")?, file))
}

/// `edit` with a script as the editor. The script's last argument is the copy.
fn edit(lab: &Lab, node: &Node, file: &Path, script: &str) -> Result<Command> {
    let editor = lab.stand_in("editor", script)?.join("editor");
    let mut command = node.rustguard()?;
    command.arg("edit").arg(file).env_remove("VISUAL").env("EDITOR", format!("{} --wait", editor.display()));
    Ok(command)
}

/// The remaining folders of copies.
fn copies() -> Result<Vec<PathBuf>> {
    let mut copies = Vec::new();
    // The copy is never in the tunnel's folder, because a tunnel may write there.
    for (folder, prefix) in [("/run", "rustguard-edit-"), ("/run/rustguard", ""), ("/tmp", "rustguard-edit-")] {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.file_name().to_string_lossy().starts_with(prefix) {
                copies.push(entry.path());
            }
        }
    }
    Ok(copies)
}

#[test]
fn an_edited_file_is_taken_over_by_the_tunnel_that_runs() {
    scenario_of_rustguard("rustguard edit", |lab| {
        let (node, file) = tunnel(lab)?;
        let seen = lab.path("seen");
        let script = format!(
            "[ \"$1\" = --wait ] || exit 9; stat -c '%a %n' $2 > {0}; stat -c %a $(dirname $2) >> {0}; sed -i s/51801/51802/ $2",
            seen.display()
        );
        let before = fs::read_to_string(&file)?;
        // Without a running tunnel, only the file is written.
        let ended = node.end_of(&mut edit(lab, &node, &file, &script)?)?;
        ensure!(ended.success() && ended.stderr.is_empty(), "{ended}");
        let after = before.replace("51801", "51802");
        ensure!(fs::read_to_string(&file)? == after, "{}", fs::read_to_string(&file)?);
        ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o640, "the mode stays");
        let seen = fs::read_to_string(&seen)?;
        ensure!(
            seen.starts_with("600 /run/rustguard-edit-") && seen.contains("/wga.conf\n700"),
            "the copy is private: {seen}"
        );
        ensure!(copies()?.is_empty(), "{:?}", copies()?);

        let _tunnel = spawn_until_ready(lab, &node, "wga", node.rustguard()?.arg("up").arg(&file))?;
        let ended = node.end_of(&mut edit(lab, &node, &file, "sed -i s/51802/51803/ $2")?)?;
        ensure!(ended.success() && ended.stdout.contains("51803"), "the changes are shown: {ended}");
        ensure!(node.run(&["wg", "show", "wga", "listen-port"])?.trim() == "51803", "not taken over");
        // It is the only tunnel, so it needs no name, whatever folder its file is in.
        let mut command = node.rustguard()?;
        let ended = node.end_of(command.arg("edit").env_remove("VISUAL").env("EDITOR", "cat"))?;
        ensure!(ended.success() && ended.stdout.contains("ListenPort = 51803"), "{ended}");
        ended.says(&["wga.conf", "unchanged"])?;

        // Without a change, with a failing editor, or with a mistake and no terminal to ask on, nothing happens.
        let ended = node.end_of(&mut edit(lab, &node, &file, "true")?)?;
        ensure!(ended.success(), "{ended}");
        ended.says(&["unchanged"])?;
        node.end_of(&mut edit(lab, &node, &file, "sed -i s/51803/51804/ $2; exit 3")?)?.refused(&["editor failed"])?;
        let ended = node.end_of(&mut edit(lab, &node, &file, "sed -i s/51803/x/ $2")?)?;
        ended.refused(&["ListenPort", &format!("{} is unchanged", file.display())])?;
        ensure!(fs::read_to_string(&file)? == before.replace("51801", "51803"), "{}", fs::read_to_string(&file)?);

        // Another program changed the file first: the user's text is kept as a copy, and the file stays as the other
        // program wrote it.
        let script = format!("echo '# mine' >> $2; echo '# theirs' >> {}", file.display());
        let ended = node.end_of(&mut edit(lab, &node, &file, &script)?)?;
        ended.refused(&["changed by another program", "your text is in"])?;
        let [copy] = &copies()?[..] else { anyhow::bail!("one copy is kept: {:?}", copies()?) };
        ensure!(fs::read_to_string(copy.join("wga.conf"))?.contains("# mine"));
        ensure!(fs::read_to_string(&file)?.ends_with("# theirs\n"), "{}", fs::read_to_string(&file)?);
        Ok(())
    });
}

/// On a terminal, a mistake can be corrected, or the text discarded.
#[test]
fn a_mistake_can_be_edited_again_or_discarded() {
    scenario_of_rustguard("rustguard edit", |lab| {
        let (node, file) = tunnel(lab)?;
        let before = fs::read_to_string(&file)?;
        let editor = lab.stand_in("editor", "sed -i 's/51801/x/; t; s/= x/= 51802/' $1")?.join("editor");
        let log = lab.path("terminal.txt");
        for (answer, after) in [("d\n", before.clone()), ("e\n", before.replace("51801", "51802"))] {
            let line = format!("{} edit {}", rustguard()?.display(), file.display());
            let mut command = node.command("script");
            command.args(["-qefc", &line]).arg(&log).env_remove("VISUAL").env("EDITOR", &editor);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
            eventually("the question", SOON, || {
                Ok(fs::read_to_string(&log).unwrap_or_default().contains("(d)iscard"))
            })?;
            child.stdin.take().context("it is a pipe")?.write_all(answer.as_bytes())?;
            ensure!(child.wait()?.success(), "{}", fs::read_to_string(&log)?);
            ensure!(fs::read_to_string(&file)? == after, "{answer}: {}", fs::read_to_string(&file)?);
            ensure!(copies()?.is_empty(), "{:?}", copies()?);
            fs::remove_file(&log)?;
        }
        Ok(())
    });
}

/// A signal that ends `edit` while the editor runs removes the copy.
#[test]
fn the_copy_is_removed_when_edit_is_ended() {
    scenario_of_rustguard("rustguard edit", |lab| {
        let (node, file) = tunnel(lab)?;
        let begun = lab.path("begun");
        let script = format!("touch {}; sleep 100", begun.display());
        for signal in ["TERM", "HUP", "QUIT", "ALRM", "USR1", "USR2"] {
            let mut process = node.spawn("edit", &mut edit(lab, &node, &file, &script)?)?;
            process.until("the editor", SOON, || Ok(begun.exists()))?;
            ensure!(copies()?.len() == 1, "{:?}", copies()?);
            // Ctrl-C belongs to the editor.
            process.signal("INT")?;
            process.stop(signal)?.refused(&["SIG", "unchanged"])?;
            ensure!(copies()?.is_empty(), "after {signal}: {:?}", copies()?);
            fs::remove_file(&begun)?;
        }
        Ok(())
    });
}

/// Closing the terminal of a tunnel in the foreground undoes everything, as Ctrl-C does.
#[test]
fn a_closed_terminal_undoes_everything() {
    scenario_of_rustguard("a closed terminal", |lab| {
        let (node, file) = tunnel(lab)?;
        let hooks = lab.path("hooks.txt");
        let text = fs::read_to_string(&file)?;
        fs::write(
            &file,
            text.replace("[Interface]\n", &format!("[Interface]\nPostDown = echo gone > {}\n", hooks.display())),
        )?;
        let before = node.traces()?;
        // `script` is the terminal. When it is killed, the kernel hangs the terminal up.
        let line = format!("exec {} up {}", rustguard()?.display(), file.display());
        let mut terminal = node.spawn("terminal", node.command("script").args(["-qec", &line, "/dev/null"]))?;
        terminal.until("the tunnel", SOON, || node.is_up("wga"))?;
        terminal.stop("KILL")?;
        eventually("everything is undone", SOON, || Ok(node.traces()? == before && hooks.exists())).with_context(|| {
            let after = node.traces().unwrap_or_default();
            format!("PostDown has run: {}. Before:\n{before}\nafter:\n{after}", hooks.exists())
        })
    });
}
