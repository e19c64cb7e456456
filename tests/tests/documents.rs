//! Whether the documents agree with the tree: paths, names, links, commands, and the drawing of the crates.
use anyhow::{Context as _, Result, ensure};
use rustguard_core::control_message::Kind;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// Its entries are about the past, so they may name things that no longer exist.
const HISTORY: &str = "CHANGELOG.md";
/// The code composes this page's metric names. `metrics.rs` compares them with the exported ones.
const METRICS: &str = "docs/guide/metrics.md";
/// Endings of files that are in the tree. Files with other endings, such as `mesh.svg` in an example, are the reader's.
const OURS: [&str; 5] = [".rs", ".md", ".toml", ".service", ".awk"];
/// Folders of the tree with which a path in a document may begin.
const FOLDERS: [&str; 7] = ["crates/", "tests/", "docs/", "benches/", "fuzz/", "packaging/", ".ci/"];

/// Names in examples that stand for any file.
const ANY_FILE: [&str; 2] = ["x.rs", "mod.rs"];
/// Functions and counters of the kernel, and functions of papers.
const OF_OTHERS: [&str; 4] = ["inet_gro_receive", "rx_frame_errors", "wg_stop", "KDFn"];

/// The files of the tree, as paths from its root with `/` between their parts.
struct Tree {
    root: PathBuf,
    files: Vec<String>,
    /// Every word of the sources, and the names of modules.
    words: HashSet<String>,
}

impl Tree {
    /// The tree, which all tests read once.
    fn get() -> &'static Self {
        static TREE: LazyLock<Tree> = LazyLock::new(|| Tree::read().expect("the tree of the sources"));
        &TREE
    }

    fn read() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
        let mut files = Vec::new();
        walk(&root, "", &mut files)?;
        let mut words: HashSet<String> = OF_OTHERS.iter().map(|word| (*word).to_owned()).collect();
        for file in files.iter().filter(|file| file.ends_with(".rs") || file.ends_with(".toml") || *file == ".ci/run") {
            let text = fs::read_to_string(root.join(file)).with_context(|| file.clone())?;
            words.extend(Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            words.extend(text.split(|c: char| !is_word(c)).map(str::to_owned));
        }
        ensure!(files.iter().any(|file| file == "README.md"), "{} is not the tree", root.display());
        Ok(Self { root, files, words })
    }

    /// The documents, with their texts.
    fn documents(&self) -> Result<Vec<(&str, String)>> {
        let documents = self.files.iter().filter(|file| file.ends_with(".md"));
        documents.map(|file| Ok((file.as_str(), fs::read_to_string(self.root.join(file))?))).collect()
    }

    /// Whether there is a file or a folder of this name: a whole path, or the end of one that begins with a whole part.
    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.iter().any(|file| {
            let file = format!("/{file}");
            file.ends_with(&format!("/{path}")) || file.starts_with(&format!("/{path}/"))
        })
    }
}

/// All files below `folder`, except build output, git's files, and the fuzz corpus.
fn walk(root: &Path, folder: &str, files: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file name that is not UTF-8")?;
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() {
            if !(["target", "target-fast", ".git", "corpus", "artifacts"].contains(&name.as_str())) {
                walk(root, &path, files)?;
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The lines of a document outside its code blocks, or those inside.
fn lines(text: &str, code: bool) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !fence && inside == code
    })
}

/// The text between backticks. A span ends on the line on which it begins, or on the next.
fn spans(text: &str) -> Vec<String> {
    let prose: Vec<&str> = lines(text, false).collect();
    let prose = prose.join("\n");
    let paragraphs = prose.split("\n\n");
    paragraphs.flat_map(|part| part.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " "))).collect()
}

/// Whether a span of code is a path of this tree.
fn is_path(span: &str) -> bool {
    let plain = span.chars().all(|c| is_word(c) || "/.-@".contains(c));
    let ours =
        OURS.iter().any(|ending| span.ends_with(ending)) || FOLDERS.iter().any(|folder| span.starts_with(folder));
    plain && ours && !ANY_FILE.contains(&span) && !span.starts_with("./") && !span.starts_with('/')
}

/// The words of a span that is a Rust name: with `::`, in camel case, or with an underscore.
fn name(span: &str) -> Option<Vec<&str>> {
    let span = span.trim_end_matches("()");
    let parts: Vec<&str> = span.split("::").collect();
    let identifier = |part: &&str| part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.chars().all(is_word);
    let (small, large) =
        (span.contains(|c: char| c.is_ascii_lowercase()), span.contains(|c: char| c.is_ascii_uppercase()));
    let telling = parts.len() > 1 || (small && (large || span.contains('_')));
    (telling && parts.iter().all(identifier)).then_some(parts)
}

/// The targets of the links into the tree, with the part behind `#` separate.
fn links(text: &str) -> Vec<(String, Option<String>)> {
    let prose: Vec<&str> = lines(text, false).collect();
    let prose = prose.join(" ");
    let targets = prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    let local = targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace));
    local
        .map(|target| match target.split_once('#') {
            Some((file, heading)) => (file.to_owned(), Some(heading.to_owned())),
            None => (target, None),
        })
        .collect()
}

/// The anchor of a heading, as GitHub forms it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The value of each `option` in a command.
fn values<'t>(command: &'t str, option: &'static str) -> impl Iterator<Item = &'t str> {
    let words = command.split_whitespace();
    words.clone().zip(words.skip(1)).filter(move |(word, _)| *word == option).map(|(_, value)| value.trim_matches('`'))
}

#[test]
fn every_path_exists() {
    let tree = Tree::get();
    let mut missing = Vec::new();
    for (file, text) in tree.documents().unwrap() {
        for span in spans(&text).iter().filter(|span| file != HISTORY && is_path(span) && !tree.has(span)) {
            missing.push(format!("{file}: {span}"));
        }
    }
    assert!(missing.is_empty(), "there is no such file:\n{}", missing.join("\n"));
}

#[test]
fn every_name_of_the_code_exists() {
    let tree = Tree::get();
    let mut missing = Vec::new();
    for (file, text) in tree.documents().unwrap() {
        let exported = |span: &str| file == METRICS && span.starts_with("rustguard_");
        for span in spans(&text).iter().filter(|span| file != HISTORY && !exported(span)) {
            let unknown = |part: &&str| !tree.words.contains(*part);
            if let Some(part) = name(span).and_then(|parts| parts.into_iter().find(unknown)) {
                missing.push(format!("{file}: `{span}` ({part})"));
            }
        }
    }
    assert!(missing.is_empty(), "no source has this word:\n{}", missing.join("\n"));
}

#[test]
fn every_link_leads_somewhere() {
    let tree = Tree::get();
    let mut missing = Vec::new();
    for (file, text) in tree.documents().unwrap() {
        let folder = tree.root.join(file).parent().map(Path::to_owned).unwrap_or_default();
        for (target, heading) in links(&text) {
            let path = if target.is_empty() { tree.root.join(file) } else { folder.join(&target) };
            let there = path.exists()
                && heading.as_ref().is_none_or(|heading| {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    lines(&text, false).any(|line| line.starts_with('#') && anchor(line) == *heading)
                });
            if !there {
                missing.push(format!("{file}: {target} {}", heading.unwrap_or_default()));
            }
        }
    }
    assert!(missing.is_empty(), "there is no such file or heading:\n{}", missing.join("\n"));
}

#[test]
fn every_command_names_packages_tests_and_benches_that_exist() {
    let tree = Tree::get();
    let mut missing = Vec::new();
    for (file, text) in tree.documents().unwrap() {
        let spans = spans(&text);
        let commands = lines(&text, true).chain(spans.iter().map(String::as_str));
        for command in commands.filter(|command| file != HISTORY && command.contains("cargo ")) {
            let kinds = [("--test", "tests"), ("--bench", "benches"), ("--example", "examples")];
            for (value, folder) in
                kinds.iter().flat_map(|(option, folder)| values(command, option).map(move |value| (value, folder)))
            {
                let names = [format!("{folder}/{value}.rs"), format!("{folder}/{value}/main.rs")];
                if !names.iter().any(|name| tree.has(name)) {
                    missing.push(format!("{file}: {command}: {value}"));
                }
            }
            for package in values(command, "-p").filter(|package| package.starts_with("rustguard")) {
                if !tree.words.contains(package.rsplit('-').next().unwrap_or_default()) || !has_package(tree, package) {
                    missing.push(format!("{file}: {command}: {package}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "there is no such target:\n{}", missing.join("\n"));
}

fn has_package(tree: &Tree, package: &str) -> bool {
    let manifests = tree.files.iter().filter(|file| file.ends_with("Cargo.toml"));
    let line = format!("name = \"{package}\"");
    manifests.into_iter().any(|file| fs::read_to_string(tree.root.join(file)).is_ok_and(|text| text.contains(&line)))
}

/// Programs read the kinds, so the guide must list all of them.
#[test]
fn every_kind_of_problem_is_in_the_guide() {
    let tree = Tree::get();
    let read = |file: &str| fs::read_to_string(tree.root.join(file)).unwrap();
    let source = read("crates/rustguard-device/src/status/problem.rs");
    let arms =
        source.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.strip_suffix("\",")?.split_once("=> \""));
    let kinds: Vec<&str> = arms.map(|(_, kind)| kind).collect();
    assert!(kinds.len() >= 13, "{kinds:?}");
    let guide = read("docs/guide/troubleshooting.md");
    let missing: Vec<_> = kinds.iter().filter(|kind| !guide.contains(&format!("\n| `{kind}` | "))).collect();
    assert!(missing.is_empty(), "not in the guide: {missing:?}");
}

/// The page is the specification: it lists every kind with its byte and its versions.
#[test]
fn every_kind_of_control_message_is_in_its_specification() {
    let page = fs::read_to_string(Tree::read().unwrap().root.join("docs/messages.md")).unwrap();
    let rows = page.split("## Kinds").nth(1).and_then(|rest| rest.split("\n\n").nth(1)).unwrap().lines().skip(2);
    let found: Vec<(String, String)> = rows
        .map(|row| row.split(" | ").collect())
        .map(|row: Vec<&str>| (row[0].to_owned(), row[2].to_owned()))
        .collect();
    let versions = |kind: Kind| (1..=kind.newest_version()).map(|version| version.to_string()).collect::<Vec<_>>();
    let kinds = Kind::ALL.map(|kind| (format!("| {}", kind as u8), versions(kind).join(", ")));
    assert_eq!(found, kinds);
}

/// A README repeats the tested example of its crate's documentation, or its own examples are tests.
#[test]
fn every_example_of_a_readme_is_tested() {
    let tree = Tree::get();
    let mut untested = Vec::new();
    for (file, text) in tree.documents().unwrap().iter().filter(|(file, _)| file.starts_with("crates/")) {
        let source = fs::read_to_string(tree.root.join(file.replace("README.md", "src/lib.rs"))).unwrap_or_default();
        let tested: HashSet<&str> = source.lines().filter_map(|line| Some(line.strip_prefix("//!")?.trim())).collect();
        let blocks = text.split("```rust\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
        for line in blocks.flat_map(str::lines).filter(|_| !source.contains("#[doc = include_str!(\"../README.md\")]"))
        {
            if !tested.contains(line.trim()) {
                untested.push(format!("{file}: {line}"));
            }
        }
    }
    assert!(untested.is_empty(), "not in the documentation of the crate:\n{}", untested.join("\n"));
}

type Edges = BTreeSet<(String, String)>;

/// Which crate of `crates/` depends on which, without dev-dependencies, from `cargo metadata`.
fn dependencies(root: &Path) -> Result<Edges> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let mut edges = Edges::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        if !manifest.contains("/crates/") {
            continue;
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let (from, to) =
                (package["name"].as_str().unwrap_or_default(), dependency["name"].as_str().unwrap_or_default());
            if dependency["kind"].is_null() && to.starts_with("rustguard-") {
                edges.insert((from.to_owned(), to.to_owned()));
            }
        }
    }
    Ok(edges)
}

/// The edges without redundant ones: an edge is dropped if another path leads to the same crate.
fn essential(edges: &Edges) -> Edges {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
    }
    let reaches = |from: &str, to: &str| {
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            open.extend(next.get(at).into_iter().flatten());
        }
        false
    };
    let others = |from: &str, to: &str| next[from].iter().filter(|way| **way != to).any(|way| reaches(way, to));
    edges.iter().filter(|(from, to)| !others(from, to)).cloned().collect()
}

/// The arrows of a mermaid drawing. Each node has its label once.
fn drawn(text: &str) -> Result<Edges> {
    let lines: Vec<&str> = lines(text, true).filter(|line| line.contains("-->")).collect();
    let mut names = BTreeMap::new();
    for node in lines.iter().flat_map(|line| line.split("-->")) {
        if let Some((short, name)) = node.trim().split_once('[') {
            names.insert(short, name.trim_end_matches(']').to_owned());
        }
    }
    let name = |node: &str| {
        let short = node.trim().split('[').next().unwrap_or_default();
        names.get(short).cloned().with_context(|| format!("{short} has no name in the drawing"))
    };
    lines
        .iter()
        .map(|line| line.split_once("-->").context("no arrow").and_then(|(from, to)| Ok((name(from)?, name(to)?))))
        .collect()
}

#[test]
fn the_drawing_of_the_crates_is_what_cargo_knows() {
    let tree = Tree::get();
    let text = fs::read_to_string(tree.root.join("ARCHITECTURE.md")).unwrap();
    let (known, drawn) = (essential(&dependencies(&tree.root).unwrap()), drawn(&text).unwrap());
    assert!(known.len() > 5, "{known:?}");
    let show =
        |edges: Vec<&(String, String)>| edges.iter().map(|(a, b)| format!("\n  {a} --> {b}")).collect::<String>();
    let (missing, wrong) = (known.difference(&drawn).collect::<Vec<_>>(), drawn.difference(&known).collect::<Vec<_>>());
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "ARCHITECTURE.md\nlacks:{}\nhas, but cargo does not, or others imply it:{}",
        show(missing),
        show(wrong)
    );
}

/// The failures that these checks must detect.
#[test]
fn what_does_not_agree_is_found() {
    let tree = Tree::get();
    for (path, there) in [
        ("README.md", true),
        ("tests/documents.rs", true),
        ("ests/documents.rs", false),
        ("crates/", true),
        ("no.rs", false),
    ] {
        assert_eq!(tree.has(path), there, "{path}");
    }
    assert_eq!(spans("`a`, `b\nc`\n```\n`d`\n```\ne\n\n`f` g"), ["a", "b c", "f"]);
    for (span, path) in [
        ("a/b.rs", true),
        ("crates/x", true),
        ("crates/*", false),
        ("mesh.svg", false),
        ("./a.rs", false),
        ("a b.rs", false),
    ] {
        assert_eq!(is_path(span), path, "{span}");
    }
    for (span, parts) in [
        ("a::B", Some(vec!["a", "B"])),
        ("AbC()", Some(vec!["AbC"])),
        ("up", None),
        ("ALL", None),
        ("a b", None),
        ("--a_b", None),
    ] {
        assert_eq!(name(span), parts, "{span}");
    }
    assert_eq!(
        links("[a](b.md#c-d) [e](https://f) [g](#h)"),
        [("b.md".to_owned(), Some("c-d".to_owned())), (String::new(), Some("h".to_owned()))]
    );
    assert_eq!(anchor("## Two uplinks, several `x`"), "two-uplinks-several-x");
    assert_eq!(values("cargo test -p a --test b -p c", "-p").collect::<Vec<_>>(), ["a", "c"]);
    let edge = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let edges = Edges::from([edge("a", "b"), edge("b", "c"), edge("a", "c"), edge("a", "d")]);
    assert_eq!(essential(&edges), Edges::from([edge("a", "b"), edge("b", "c"), edge("a", "d")]));
    assert_eq!(drawn("```\na[A] --> b[B]\nb --> c[C]\n```").unwrap(), Edges::from([edge("A", "B"), edge("B", "C")]));
    assert!(drawn("```\na[A] --> b\n```").is_err());
}
