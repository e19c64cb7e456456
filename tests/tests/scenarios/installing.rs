//! `rustguard install` and `uninstall`: which files they write where, and what they ask systemd for. A stand-in
//! replaces systemctl here; `packaging/booted` uses the real one.
use anyhow::{Result, ensure};
use rustguard_tests::{
    Conf, Ended, Lab, program_for_everybody, rustguard, scenario, scenario_of_rustguard, spawn_until_ready,
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

/// The program with a systemctl stand-in that records its arguments and knows one running tunnel.
fn program(lab: &Lab) -> Result<Command> {
    let asked = lab.path("asked");
    let stand_ins = lab.stand_in(
        "systemctl",
        &format!(
            "echo \"$@\" >> {}\n[ \"$1\" != list-units ] || echo 'rustguard@wg0.service loaded active running'",
            asked.display()
        ),
    )?;
    fs::create_dir_all("/run/systemd/system")?;
    if !lab.path("asked").exists() {
        // This is the scenario's own /etc. The machine's tunnels are not touched.
        for folder in ["/etc/wireguard", "/etc/rustguard"] {
            let _ = fs::remove_dir_all(folder);
        }
    }
    let mut command = Command::new("sh");
    // A strict umask must not make the installed files private.
    command.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(rustguard()?);
    command.env("PATH", format!("{}:{}", stand_ins.display(), std::env::var("PATH")?));
    Ok(command)
}

fn install(lab: &Lab, what: &[&str]) -> Result<Ended> {
    Ended::of(program(lab)?.args(what))
}

/// The arguments of systemctl since the last call.
fn asked(lab: &Lab) -> Result<Vec<String>> {
    let path = lab.path("asked");
    let lines = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, "")?;
    Ok(lines.lines().map(str::to_owned).collect())
}

/// The files below a folder, as paths from it.
fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    Ok(files)
}

const RESTART: [&str; 2] = ["daemon-reload", "try-restart rustguard@*.service rustguard-serve@*.service"];

#[test]
fn what_is_installed_is_removed_again() {
    scenario(|lab| {
        let prefix = lab.path("prefix");
        let option = format!("--prefix={}", prefix.display());
        let told = install(lab, &["install", &option])?;
        ensure!(told.success(), "{told}");
        ensure!(asked(lab)? == RESTART, "systemd was asked for something else");

        let installed = files(&prefix)?;
        for file in ["bin/rustguard", "lib/systemd/system/rustguard@.service", "share/man/man5/rustguard.conf.5"] {
            ensure!(installed.contains(Path::new(file)), "{file}: {installed:?}");
        }
        for file in &installed {
            let mode =
                |path: &Path| Ok::<_, anyhow::Error>(fs::metadata(prefix.join(path))?.permissions().mode() & 0o777);
            let wanted = if file.starts_with("bin") { 0o755 } else { 0o644 };
            ensure!(mode(file)? == wanted, "{}: {:o}", file.display(), mode(file)?);
            for folder in file.ancestors().skip(1) {
                ensure!(mode(folder)? == 0o755, "{}: {:o}", folder.display(), mode(folder)?);
            }
        }

        // An earlier version installed a page that this version does not have. Files outside its list belong to
        // somebody else.
        let list = prefix.join("share/rustguard/files");
        let old = prefix.join("share/man/man1/rustguard-old.1");
        fs::write(&list, fs::read_to_string(&list)? + "share/man/man1/rustguard-old.1\n../outside\n")?;
        let theirs = [prefix.join("share/man/man1/other.1"), lab.path("outside")];
        for file in theirs.iter().chain([&old]) {
            fs::write(file, "")?;
        }
        let told = install(lab, &["install", &option])?;
        ensure!(told.success() && !old.exists(), "{told}");
        ensure!(asked(lab)? == RESTART, "systemd was asked for something else");

        let wants = Path::new("/etc/systemd/system/multi-user.target.wants");
        // This is the scenario's own /etc. The machine's tunnels are not touched.
        let _ = fs::remove_dir_all(wants);
        fs::create_dir_all(wants)?;
        for unit in ["rustguard@home.service", "rustguardian@home.service"] {
            symlink("/dev/null", wants.join(unit))?;
        }
        let told = install(lab, &["uninstall", &option])?;
        ensure!(told.success(), "{told}");
        let asked = asked(lab)?;
        ensure!(
            asked[1..]
                == [
                    "disable --quiet --now -- rustguard@home.service rustguard@wg0.service",
                    "reset-failed -- rustguard@home.service rustguard@wg0.service",
                    "daemon-reload"
                ],
            "{asked:#?}"
        );
        ensure!(theirs.iter().all(|file| file.exists()), "a file that is not ours was removed");
        ensure!(files(&prefix)? == [PathBuf::from("share/man/man1/other.1")].into(), "something is left");
        let told = install(lab, &["uninstall", &option])?;
        ensure!(!told.success() && told.stderr.contains("has installed nothing"), "{told}");
        Ok(())
    });
}

/// Tunnels that have a file or are up without systemd are listed with a remedy. The others are not listed.
#[test]
fn tunnels_that_systemd_does_not_run_are_named() {
    scenario_of_rustguard("installing", |lab| {
        let option = format!("--prefix={}", lab.path("prefix").display());
        let told = install(lab, &["install", &option])?;
        ensure!(told.success() && !told.stdout.contains("at each start: "), "nothing to name: {told}");
        let wants = Path::new("/etc/systemd/system/multi-user.target.wants");
        let _ = fs::remove_dir_all(wants);
        fs::create_dir_all(wants)?;
        for unit in ["rustguard@enabled.service", "rustguard-serve@served.service", "wg-quick@stock.service"] {
            symlink("/dev/null", wants.join(unit))?;
        }
        for folder in ["/etc/wireguard", "/etc/rustguard"] {
            fs::create_dir_all(folder)?;
        }
        // The stand-in says that systemd runs wg0.
        for file in
            ["wireguard/enabled", "rustguard/served", "wireguard/stock", "rustguard/asleep", "rustguard/no name"]
        {
            fs::write(format!("/etc/{file}.conf"), "")?;
        }
        let node = lab.node("a")?;
        let by_hand = lab.file("hand.conf", &Conf::new("hand")?.wg_quick())?;
        let _up = spawn_until_ready(lab, &node, "hand", node.command(rustguard()?).arg("up").arg(by_hand))?;
        asked(lab)?;
        let told = install(lab, &["install", &option])?;
        ensure!(told.success(), "{told}");
        let says = |words: &str| told.stdout.lines().any(|line| line.contains(words));
        for words in [
            "asleep has a file, and is not brought up at each start: `systemctl enable --now rustguard@asleep`",
            "stock is brought up by wg-quick at each start; to change that: `systemctl disable --now wg-quick@stock && ",
            "hand is up, but not by systemd, and still runs the program of before: `rustguard down hand`, then `systemctl enable --now rustguard@hand`",
        ] {
            ensure!(says(words), "{words}: {told}");
        }
        for name in ["enabled has", "served has", "name has", "enabled is", "wg0 is"] {
            ensure!(!says(name), "{name}: {told}");
        }
        ensure!(asked(lab)?[2].starts_with("list-units --state=active,"), "systemd was asked for something else");
        Ok(())
    });
}

/// Uninstalling removes folders that the installation made, and keeps those that existed before.
#[test]
fn folders_that_were_made_are_removed() {
    scenario(|lab| {
        let prefix = lab.path("prefix");
        let option = format!("--prefix={}", prefix.display());
        let installed = |what: &str| {
            let told = install(lab, &[what, &option])?;
            ensure!(told.success(), "{told}");
            Ok(told)
        };
        installed("install")?;
        ensure!(prefix.join("lib/systemd/system").is_dir(), "nothing is installed");
        // The second installation still knows which folders the first one made.
        installed("install")?;
        // A missing file stops neither an installation nor its removal.
        fs::remove_file(prefix.join("bin/rustguard"))?;
        installed("install")?;
        fs::remove_file(prefix.join("share/man/man1/rustguard.1"))?;
        installed("uninstall")?;
        ensure!(!prefix.exists(), "{:?}", fs::read_dir(&prefix)?.collect::<Vec<_>>());

        let theirs = ["share/man/man1", "share/fish", "etc"].map(|folder| prefix.join(folder));
        for folder in &theirs {
            fs::create_dir_all(folder)?;
        }
        installed("install")?;
        let own = prefix.join("lib/systemd/system/own.service");
        fs::write(&own, "")?;
        installed("uninstall")?;
        ensure!(theirs.iter().all(|folder| folder.is_dir()) && own.exists(), "something of others was removed");
        ensure!(!prefix.join("bin").exists() && !prefix.join("share/man/man5").exists(), "folders are left");
        ensure!(files(&prefix)? == [PathBuf::from("lib/systemd/system/own.service")].into(), "files are left");
        Ok(())
    });
}

/// Without root, the error says so and nothing changes; installing below a folder of one's own works.
#[test]
fn without_root() {
    scenario(|lab| {
        if !Command::new("setpriv").args(["--reuid=65534", "true"]).status().is_ok_and(|status| status.success()) {
            lab.skip("installing without root: this namespace has one user");
            return Ok(());
        }
        let program = program_for_everybody(lab)?;
        fs::create_dir_all("/run/systemd/system")?;
        let prefix = lab.path("prefix");
        let nobody = |what: &str, prefix: &Path| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
            Ended::of(command.arg(what).arg(format!("--prefix={}", prefix.display())))
        };
        nobody("install", &prefix)?.refused(&["cannot write", "run as root, or with sudo"])?;
        ensure!(!prefix.exists(), "something was installed");
        ensure!(install(lab, &["install", &format!("--prefix={}", prefix.display())])?.success());
        let before = files(&prefix)?;
        nobody("uninstall", &prefix)?.refused(&["cannot remove", "run as root, or with sudo"])?;
        ensure!(files(&prefix)? == before, "something was removed");

        let home = lab.path("home");
        fs::create_dir(&home)?;
        std::os::unix::fs::chown(&home, Some(65534), Some(65534))?;
        let own = home.join(".local");
        let told = nobody("install", &own)?;
        ensure!(told.success() && told.stdout.contains("systemd was not told"), "{told}");
        let told = nobody("uninstall", &own)?;
        ensure!(told.success() && !own.exists(), "{told}");
        Ok(())
    });
}

/// The suggestions that a shell's completion script asks for at Tab. A peer whose name contains shell syntax is offered
/// by its key.
#[test]
fn completions_know_interfaces_files_and_peers() {
    scenario_of_rustguard("the completions of its own commands", |lab| {
        let node = lab.node("a")?;
        let mut file = Conf::new("wga")?.wg_quick();
        let keys = [Conf::new("b")?.keys.public, Conf::new("c")?.keys.public];
        for (name, key) in ["desk", "a (b)"].iter().zip(&keys) {
            file += &format!("\n# Name = {name}\n[Peer]\nPublicKey = {key}\nAllowedIPs = 10.9.{}.0/24\n", name.len());
        }
        let file = lab.file("wga.conf", &file)?;
        let _up = spawn_until_ready(lab, &node, "wga", node.command(rustguard()?).arg("up").arg(file))?;
        fs::create_dir_all("/etc/rustguard")?;
        fs::write("/etc/rustguard/wgfile.conf", "")?;
        let complete = |words: &[&str]| -> Result<BTreeSet<String>> {
            let mut command = node.command(rustguard()?);
            command.env("RUSTGUARD_COMPLETE", "bash").env("_CLAP_IFS", "\n");
            command.env("_CLAP_COMPLETE_INDEX", words.len().to_string());
            let told = node.end_of(command.arg("--").arg("rustguard").args(words))?;
            ensure!(told.success(), "{told}");
            Ok(told.stdout.lines().map(str::to_owned).collect())
        };
        ensure!(complete(&["down", "wg"])? == ["wga", "wgfile"].map(str::to_owned).into(), "files and interfaces");
        ensure!(complete(&["show", "wg"])? == ["wga".to_owned()].into(), "interfaces");
        let peers = complete(&["ping", ""])?;
        ensure!(peers.contains("desk") && peers.contains(&keys[1].to_string()), "{peers:?}");
        ensure!(!peers.iter().any(|peer| peer.contains('(')), "{peers:?}");
        Ok(())
    });
}

/// Files of a package manager are not replaced.
#[test]
fn a_program_of_a_package_is_not_replaced() {
    scenario(|lab| {
        let prefix = lab.path("prefix");
        fs::create_dir_all(prefix.join("bin"))?;
        fs::write(prefix.join("bin/rustguard"), "theirs")?;
        let told = install(lab, &["install", "--prefix", &prefix.display().to_string()])?;
        ensure!(!told.success() && told.stderr.contains("remove it first"), "{told}");
        ensure!(fs::read_to_string(prefix.join("bin/rustguard"))? == "theirs" && asked(lab)?.is_empty());
        Ok(())
    });
}

/// As a package build does: only files, whose final prefix is not the folder in which they are written.
#[test]
fn a_root_for_a_package_has_the_files_and_nothing_else() {
    scenario(|lab| {
        let root = lab.path("root");
        let told = install(lab, &["install", "--prefix=/usr", "--root", &root.display().to_string()])?;
        ensure!(told.success() && asked(lab)?.is_empty(), "{told}");
        let unit = fs::read_to_string(root.join("usr/lib/systemd/system/rustguard@.service"))?;
        ensure!(unit.contains("\nExecStart=/usr/bin/rustguard up %i\n"), "{unit}");
        ensure!(!root.join("usr/share/rustguard").exists(), "a list for `uninstall` would compete with the manager's");
        Ok(())
    });
}
