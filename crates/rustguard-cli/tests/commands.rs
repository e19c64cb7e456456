//! The commands that need no tunnel, as a shell sees them: output, standard error, exit status.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

const SECRET: &str = "YAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

fn rustguard(directory: &Path, arguments: &[&str]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_rustguard")).args(arguments).current_dir(directory), "")
}

fn run(command: &mut Command, input: &str) -> Output {
    let command =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUSTGUARD_LOG");
    let mut child = command.spawn().unwrap();
    // A child that does not read its input may have closed it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn pubkey(program: &str, input: &str) -> Output {
    run(Command::new(program).arg("pubkey"), input)
}

/// A directory with `wg0.conf` in it.
fn file(text: &str, mode: u32) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wg0.conf");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (directory, path)
}

fn check(text: &str, arguments: &[&str]) -> Output {
    let (directory, _) = file(text, 0o600);
    rustguard(directory.path(), &[&["check", "wg0.conf"], arguments].concat())
}

#[test]
fn keys_are_those_of_wg() {
    let here = Path::new(".");
    let key = rustguard(here, &["genkey"]);
    assert!(key.status.success() && key.stdout.len() == 45 && stderr(&key).is_empty(), "{key:?}");
    assert_ne!(stdout(&key), stdout(&rustguard(here, &["genkey"])));
    assert_eq!(rustguard(here, &["genpsk"]).stdout.len(), 45);
    let ours = env!("CARGO_BIN_EXE_rustguard");
    assert_eq!(stdout(&pubkey(ours, SECRET)), "Y2FD6uTgrq+/bbBAXCNOtE+PGk8Papoh7qaWBpQUXn0=\n");
    for input in ["", "\n", "nonsense\n", &SECRET.replace('=', "A")] {
        let output = pubkey(ours, input);
        assert_eq!(output.status.code(), Some(1), "{input:?}");
        assert!(stderr(&output).starts_with("rustguard: ") && stdout(&output).is_empty(), "{output:?}");
    }
    if Command::new("wg").arg("--version").output().is_err() {
        rustguard_skip::missing("no wg: apt install wireguard-tools");
        return;
    }
    assert_eq!(pubkey(ours, stdout(&key)).stdout, pubkey("wg", stdout(&key)).stdout);
}

#[test]
fn a_key_for_everybody_to_read_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    for (mode, warned) in [(0o644, true), (0o600, false)] {
        let path = directory.path().join(format!("{mode:o}"));
        let file = fs::File::create(&path).unwrap();
        file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_rustguard")).arg("genkey").stdout(file).output().unwrap();
        assert_eq!(stderr(&output).contains("umask"), warned, "{output:?}");
        assert_eq!(fs::metadata(path).unwrap().len(), 45);
    }
}

#[test]
fn check_explains_the_mtu_that_holds_on_all_ways() {
    let file = |interface: &str, endpoint: &str| {
        let relay = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";
        format!(
            "[Interface]\nPrivateKey = {SECRET}\n{interface}\n[Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.2/32\n\
             Endpoint = {endpoint}\n[Peer]\n# Name = office\nPublicKey = {relay}\nAllowedIPs = 10.0.0.3/32\n\
             Endpoint = 192.0.2.1:1\n"
        )
    };
    let explained = |output: &Output| {
        assert!(output.status.success() && stderr(output).is_empty(), "{output:?}");
        stdout(output).to_owned()
    };
    let relayed = "via-peer AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";
    assert_eq!(
        explained(&check(&file("", relayed), &[])),
        "wg0.conf: one MTU for all ways, also through a peer: 1360: 1500 - 48 (IPv6, UDP) - 32 (the message to the relay) - 24 (for \
         whom, and from whom) - 32 (the message to the peer) = 1364, and a multiple of 16\n"
    );
    assert_eq!(
        explained(&check(&file("MTU = 1300", relayed), &[])),
        "wg0.conf: one MTU for all ways, also through a peer: 1300: 1300 + 48 (IPv6, UDP) + 32 (the message to the relay) + 24 (for \
         whom, and from whom) + 32 (the message to the peer) = 1436 bytes outside, of 1500 in most networks\n"
    );
    assert!(explained(&check(&file("", relayed), &["--json"])).contains("\"mtu\": \"1360: 1500 - 48"));
    assert_eq!(explained(&check(&file("", "192.0.2.2:1"), &[])), "", "every way is by UDP");
    let too_large = check(&file("MTU = 1420", relayed), &[]);
    assert_eq!(stdout(&too_large), "");
    assert!(stderr(&too_large).contains("`MTU = 1360` fits"), "{too_large:?}");
}

#[test]
fn mistakes_have_carets_and_help() {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nListenPrt = 51820\n\n[Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.0/8, 10.0.0.1/33\n",
        &SECRET[1..]
    );
    let output = check(&text, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    assert_eq!(
        stderr(&output),
        "\
error: PrivateKey must be 32 bytes, which is 44 characters of base64; this has 43 characters
 --> wg0.conf:2:14
  |
2 | PrivateKey = *******************************************
  |              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: was a part of it lost when it was copied?

error: there is no key `ListenPrt` in [Interface]
 --> wg0.conf:3:1
  |
3 | ListenPrt = 51820
  | ^^^^^^^^^
  |
  = help: did you mean `ListenPort`?

error: AllowedIPs has the prefix length /33 in `10.0.0.1/33`
 --> wg0.conf:7:26
  |
7 | AllowedIPs = 10.0.0.0/8, 10.0.0.1/33
  |                          ^^^^^^^^^^^
  |
  = help: IPv4 prefix lengths are 0 to 32

"
    );
}

#[test]
fn the_exit_status_is_the_verdict() {
    let good = format!("[Interface]\nPrivateKey = {SECRET}\n");
    let warned = format!("{good}PostUp =\n");
    for (text, arguments, code) in [
        (&good, &[][..], 0),
        (&good, &["--strict"], 0),
        (&warned, &[], 0),
        (&warned, &["--strict"], 1),
        (&"\0\u{1}nonsense".to_owned(), &[], 1),
        (&String::new(), &[], 1),
        (&good, &["./no-such.conf"], 2),
        (&good, &["rg-no-such"], 2),
        (&good, &["--no-such"], 2),
    ] {
        let output = check(text, arguments);
        assert_eq!(output.status.code(), Some(code), "{text:?} {arguments:?} {output:?}");
        assert_eq!(output.stderr.is_empty(), code == 0 && *text == good, "{output:?}");
        assert!(!stderr(&output).contains("panicked"));
    }
}

#[test]
fn a_file_for_everybody_to_read_is_warned_of() {
    let (directory, _) = file(&format!("[Interface]\nPrivateKey = {SECRET}\n"), 0o644);
    let output = rustguard(directory.path(), &["check", "wg0.conf"]);
    assert!(output.status.success() && stderr(&output).contains("wg0.conf is readable by others"), "{output:?}");
    assert_eq!(rustguard(directory.path(), &["check", "--strict", "wg0.conf"]).status.code(), Some(1));
}

#[test]
fn a_file_for_everybody_to_read_that_is_no_configuration_has_no_key() {
    // `chmod 600 /etc/passwd` would be bad advice.
    let (_folder, file) = file("root:x:0:0:root:/root:/bin/sh\n", 0o644);
    let output = rustguard(Path::new("."), &["check", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!stderr(&output).contains("readable by others"), "{output:?}");
}

#[test]
fn json_has_the_same_for_programs() {
    let output = check("[Interface]\nListenPort = é\n", &["--json", "./no-such.conf"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.is_empty());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let port = &json[0]["diagnostics"][1];
    assert_eq!(json[0]["file"], "wg0.conf");
    assert_eq!(
        (&port["severity"], &port["line"], &port["column"], &port["length"]),
        (&"error".into(), &2.into(), &14.into(), &1.into())
    );
    assert!(json[1]["unreadable"].as_str().unwrap().contains("No such file"));
}

#[test]
fn up_with_a_broken_file_says_the_same_and_no_more() {
    let (directory, path) = file("[Interface]\nListenPrt = 1\n", 0o600);
    let up = rustguard(directory.path(), &["up", "wg0.conf"]);
    assert_eq!(
        (up.status.code(), stderr(&up)),
        (Some(1), stderr(&rustguard(directory.path(), &["check", "wg0.conf"])))
    );
    fs::remove_file(path).unwrap();
    let up = rustguard(directory.path(), &["up", "./wg0.conf"]);
    assert_eq!(up.status.code(), Some(1));
    assert_eq!(stderr(&up), "rustguard: cannot read ./wg0.conf: No such file or directory (os error 2)\n");
}

#[test]
fn what_is_not_text_is_no_configuration() {
    let (directory, path) = file("", 0o600);
    fs::write(path, b"[Interface]\nPostUp = \xff\n").unwrap();
    let output = rustguard(directory.path(), &["check", "wg0.conf"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "rustguard: wg0.conf: line 2: not UTF-8, so not a configuration file\n");
}

#[test]
fn completions_and_manual() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "elvish", "fish", "zsh"] {
        let output = rustguard(directory.path(), &["completions", shell]);
        assert!(output.status.success() && stdout(&output).contains("RUSTGUARD_COMPLETE"), "{shell}: {output:?}");
    }
    let output = rustguard(directory.path(), &["man"]);
    assert!(stdout(&output).contains(".TH rustguard 1"), "{output:?}");
    assert!(rustguard(directory.path(), &["man", "--dir", "a/b"]).status.success());
    let up = fs::read_to_string(directory.path().join("a/b/rustguard-up.1")).unwrap();
    assert!(up.contains("Examples") && up.contains("detach"), "{up}");
    let output = rustguard(directory.path(), &["man", "--dir", "/dev/null/x"]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("/dev/null/x"), "{output:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure_to_tell_of() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output =
        Command::new(env!("CARGO_BIN_EXE_rustguard")).args(["completions", "bash"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), ""));
}

#[test]
fn wrong_usage_is_status_2() {
    for arguments in
        [&[][..], &["up"], &["-f"], &["check"], &["show", "wg0", "nonsense"], &["show", "--json", "all", "peers"]]
    {
        assert_eq!(rustguard(Path::new("."), arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_wrong_value_on_the_data_path_is_wrong_usage_and_names_the_option_or_the_variable() {
    let here = Path::new(".");
    for (arguments, option, value) in [
        (&["up", "--queues", "0", "wg0"][..], "--queues", "0"),
        (&["up", "--queues", "65", "wg0"], "--queues", "65"),
        (&["up", "--queues", "x", "wg0"], "--queues", "x"),
        (&["up", "--queues=", "wg0"], "--queues", ""),
        (&["up", "--relay", "maybe", "wg0"], "--relay", "maybe"),
        (&["up", "--offload", "wg0"], "--offload", "wg0"),
        (&["up", "wg0", "--offload"], "--offload", ""),
        (&["up", "wg0", "--relay"], "--relay", ""),
    ] {
        let output = rustguard(here, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains(option) && said.contains(value), "{arguments:?}: {said}");
    }
    for (variable, value) in
        [("RUSTGUARD_QUEUES", "0"), ("RUSTGUARD_OFFLOAD", "perhaps"), ("RUSTGUARD_RELAY", "always")]
    {
        for arguments in [&["up", "wg0"][..], &["--userspace", "rgnone0"], &["-f", "rgnone0"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rustguard"));
            let output = run(command.args(arguments).env(variable, value), "");
            assert_eq!(output.status.code(), Some(2), "{variable}={value} {arguments:?}: {output:?}");
            let said = stderr(&output);
            assert!(said.contains(&format!("'{value}' for '{variable}'")), "{variable}={value} {arguments:?}: {said}");
        }
    }
    // Other commands ignore them.
    let mut command = Command::new(env!("CARGO_BIN_EXE_rustguard"));
    assert!(run(command.arg("genkey").env("RUSTGUARD_QUEUES", "0"), "").status.success());
}

#[test]
fn an_unknown_word_is_an_unknown_command_unless_wg_quick_calls() {
    // The name is too long for an interface, so that no tunnel starts if the word is taken as an interface.
    let word = "interface-name-too-long";
    let run = |arguments: &[&str], environment: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rustguard"));
        command.args(arguments).env_remove("WG_QUICK_USERSPACE_IMPLEMENTATION");
        let output = run(command.envs(environment.iter().map(|&name| (name, "rustguard"))), "");
        (output.status.code(), stderr(&output).to_owned())
    };
    for arguments in [&["shwo"][..], &["shwo", "wg0"]] {
        let (code, said) = run(arguments, &[]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("unrecognized subcommand 'shwo'") && said.contains("'show'"), "{said}");
    }
    assert_eq!(run(&[word], &[]).0, Some(2));
    for (arguments, environment) in [
        (&["--userspace", word][..], &[][..]),
        (&["-f", word], &[]),
        (&[word], &["WG_QUICK_USERSPACE_IMPLEMENTATION"]),
        (&[word], &["WG_PROCESS_FOREGROUND"]),
    ] {
        let (code, said) = run(arguments, environment);
        assert!(code == Some(1) && said.contains(word), "{arguments:?} {environment:?}: {code:?} {said}");
    }
    for arguments in [&["-f", "show"][..], &["--userspace"], &["-f", "wg0", "wg1"]] {
        assert_eq!(run(arguments, &[]).0, Some(2), "{arguments:?}");
    }
}

#[test]
fn colours_obey_the_environment_everywhere() {
    let coloured = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rustguard"));
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "WG_COLOR_MODE"] {
            command.env_remove(name);
        }
        let output = run(command.args(arguments).envs(environment.iter().copied()), "");
        stdout(&output).contains('\u{1b}') || stderr(&output).contains('\u{1b}')
    };
    let (directory, _) = file("nonsense\n", 0o600);
    let path = directory.path().join("wg0.conf").display().to_string();
    for arguments in [&["--help"][..], &["up", "--help"], &["shwo"], &["check", &path], &["up", "./none.conf"]] {
        for (environment, expected) in [
            (&[][..], false),
            (&[("CLICOLOR_FORCE", "1")], true),
            (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
            (&[("WG_COLOR_MODE", "always")], true),
            (&[("WG_COLOR_MODE", "always"), ("NO_COLOR", "1")], true),
            (&[("WG_COLOR_MODE", "never"), ("CLICOLOR_FORCE", "1")], false),
        ] {
            assert_eq!(coloured(arguments, environment), expected, "{arguments:?} {environment:?}");
        }
    }
}

#[test]
fn times_are_written_in_the_same_way_everywhere() {
    for arguments in [
        &["open", "16m"][..],
        &["open", "0"],
        &["open", "five"],
        &["serve", "--open", "1h"],
        &["join", "--timeout", "1x"],
    ] {
        let output = rustguard(Path::new("."), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(arguments[arguments.len() - 1]), "{output:?}");
    }
    // These are understood, but no server runs.
    for time in ["60", "90s", "5m", "15m"] {
        let output = rustguard(Path::new("."), &["open", time, "-i", "rgnone9"]);
        assert_eq!(output.status.code(), Some(1), "{time}: {output:?}");
    }
}

#[test]
fn a_file_that_is_no_configuration_is_not_quoted_and_a_bad_one_is_not_endless() {
    let shadow = check("root:$6$hunter2:20228:0:99999:7:::\ndaemon:*:1::\n", &[]);
    let said = stderr(&shadow);
    assert_eq!(shadow.status.code(), Some(1), "{said}");
    assert!(said.matches("error:").count() == 1 && !said.contains("hunter2") && !said.contains("daemon"), "{said}");
    let many = check(&format!("[Interface]\nPrivateKey = {SECRET}\n{}", "Nonsense\n".repeat(100)), &[]);
    let said = stderr(&many);
    assert_eq!(said.matches("error:").count(), 20, "{said}");
    assert!(said.ends_with("and 80 more\n"), "{said}");
}

#[test]
fn status_of_a_tunnel_that_is_not_up_says_how_both_kinds_are_started() {
    let directory = tempfile::tempdir().unwrap();
    let output = rustguard(directory.path(), &["status", "no-such-name"]);
    let said = stderr(&output);
    assert!(said.contains("no-such-name is not up") && said.contains("rustguard up no-such-name"), "{said}");
    assert!(said.contains("rustguard serve --interface no-such-name"), "{said}");
    let output = rustguard(directory.path(), &["status", "../../x"]);
    assert!(stderr(&output).contains("is not an interface name"), "{output:?}");
}
