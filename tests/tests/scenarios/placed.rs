//! The file to which the name of a tunnel resolves: files that are not used, or that the systemd unit does not find,
//! are reported.
use anyhow::{Result, ensure};
use rustguard_tests::{Conf, scenario_of_rustguard, spawn_until_ready};
use std::fs;

#[test]
fn a_file_that_its_name_does_not_lead_to_is_named() {
    scenario_of_rustguard("the files of names", |lab| {
        let node = lab.node("a")?;
        let mut conf = Conf::new("wga")?;
        conf.listen_port = Some(51_801);
        let elsewhere = lab.file("wga.conf", &conf.wg_quick())?;
        let run = |arguments: &[&str]| node.end_of(node.rustguard()?.args(arguments));
        let elsewhere = elsewhere.to_string_lossy();
        let check = |arguments: &[&str], words: &[&str]| -> Result<()> {
            let ended = run(&[&["check"], arguments].concat())?;
            ensure!(ended.success(), "{ended}");
            let said = format!("{}{}", ended.stdout, ended.stderr);
            ensure!(words.iter().all(|word| said.contains(word)), "{words:?}: {ended}");
            ensure!(!words.is_empty() || said.is_empty(), "nothing to say: {ended}");
            Ok(())
        };
        // This is the scenario's own /etc. The machine's tunnels are not touched.
        for folder in ["/etc/wireguard", "/etc/rustguard"] {
            let _ = fs::remove_dir_all(folder);
            fs::create_dir_all(folder)?;
        }
        // Without systemd, a file may be anywhere.
        check(&[&elsewhere], &[])?;
        fs::create_dir_all("/run/systemd/system")?;
        check(&[&elsewhere], &["rustguard@wga.service", "does not find it there", "/etc/wireguard or /etc/rustguard"])?;
        let mut up = spawn_until_ready(lab, &node, "wga", node.rustguard()?.arg("up").arg(&*elsewhere))?;
        ensure!(up.log().contains("does not find it there"), "{}", up.log());
        ensure!(up.stop("TERM")?.success(), "{}", up.log());

        let [used, unused] = ["/etc/wireguard/wga.conf", "/etc/rustguard/wga.conf"];
        fs::copy(&*elsewhere, unused)?;
        check(&["wga"], &[])?;
        check(&[&elsewhere], &[&format!("stands for {unused}, and not for this file")])?;
        fs::copy(&*elsewhere, used)?;
        let hidden = format!("{unused} has the same name as {used}, and is not used");
        let both = [&*hidden, "remove one of the two"];
        check(&["wga"], &both)?;
        check(&[unused], &both)?;
        check(&["--json", "wga"], &[&hidden, "\"warning\""])?;
        ensure!(!run(&["check", "--strict", "wga"])?.success(), "a warning counts");
        let doctor = run(&["doctor", "wga"])?;
        ensure!(doctor.stdout.contains("is not used"), "{doctor}");
        let mut up = spawn_until_ready(lab, &node, "wga", node.rustguard()?.args(["up", "wga"]))?;
        ensure!(up.log().contains("is not used"), "{}", up.log());
        ensure!(up.stop("TERM")?.success(), "{}", up.log());

        // One file under two names counts as one.
        fs::remove_file(unused)?;
        std::os::unix::fs::symlink(used, unused)?;
        check(&["wga"], &[])?;
        check(&[unused], &[])
    });
}
