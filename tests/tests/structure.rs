//! Modules must not use each other in a circle, because a reader of one would have to read all. And no file is too long
//! to read at once.
//!
//! The test looks at the names in each module: `use` declarations, and paths that begin with `crate` or `super`. A
//! module may use its parent's items. The test looks for circles among the children of one parent, including everything
//! below them.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A module's path in its crate; empty for the crate itself.
type Module = Vec<String>;

/// The text without comments, without what is inside string literals, and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut code = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'/') => {
                rest.by_ref().find(|&c| c == '\n');
                code.push('\n');
            }
            '"' => {
                code.push_str("\"\"");
                while let Some(c) = rest.next() {
                    match c {
                        '\\' => drop(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            // A quotation mark in a character literal does not begin a string.
            '\'' if rest.peek() == Some(&'"') => code.extend(rest.by_ref().take(2).map(|_| ' ')),
            _ => code.push(c),
        }
    }
    code
}

/// The paths of a tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(tree: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let (start, inner) = match tree.find('{') {
        Some(at) => (&tree[..at], tree[at + 1..].rfind('}').map(|end| &tree[at + 1..at + 1 + end])),
        None => (tree.split(" as ").next().unwrap_or_default(), None),
    };
    let mut path = before.to_vec();
    path.extend(start.split("::").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned));
    let Some(inner) = inner else { return found.push(path) };
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                paths(&inner[from..at], &path, found);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !inner[from..].trim().is_empty() {
        paths(&inner[from..], &path, found);
    }
}

/// The paths in a module that could be in its crate. An item that `pub use` only re-exports does not count as used.
fn named(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut others = String::new();
    for statement in code.split_inclusive(';') {
        let declaration = statement.split_once("use ").map(|(before, tree)| {
            let (_, line) = before.rsplit_once('\n').unwrap_or(("", before));
            (before, line.trim(), tree)
        });
        match declaration {
            Some((before, line, tree)) if line.is_empty() || line.starts_with("pub") => {
                if line.is_empty() {
                    paths(tree.trim_end_matches(';'), &[], &mut found);
                }
                others.push_str(before);
            }
            _ => others.push_str(statement),
        }
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for word in others.split(|c| !is_word(c)) {
        if word.starts_with("crate::") || word.starts_with("super::") {
            found.push(word.split("::").filter(|word| !word.is_empty()).map(str::to_owned).collect());
        }
    }
    found
}

/// The module that a path leads into.
fn target(path: &[String], from: &Module, modules: &BTreeMap<Module, String>) -> Option<Module> {
    let mut words = path.iter().peekable();
    let mut module = match words.peek()?.as_str() {
        "crate" => {
            words.next();
            Vec::new()
        }
        "self" => {
            words.next();
            from.clone()
        }
        "super" => {
            let mut module = from.clone();
            while words.next_if(|word| *word == "super").is_some() {
                module.pop()?;
            }
            module
        }
        child if modules.contains_key(&[&from[..], &[child.to_owned()]].concat()) => from.clone(),
        _ => return None,
    };
    for word in words {
        let child = [&module[..], std::slice::from_ref(word)].concat();
        if !modules.contains_key(&child) {
            break;
        }
        module = child;
    }
    Some(module)
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// The modules of a crate, without those of its tests.
fn modules(source: &Path) -> BTreeMap<Module, String> {
    let mut all = Vec::new();
    files(source, &mut all);
    let module = |path: PathBuf| {
        let words: Module = path
            .strip_prefix(source)
            .ok()?
            .with_extension("")
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let is_test = words.iter().any(|word| word == "tests" || word == "testing");
        if is_test || path.extension()? != "rs" {
            return None;
        }
        let is_root = words.len() == 1 && ["lib", "main"].contains(&words[0].as_str());
        Some((if is_root { Vec::new() } else { words }, code(&fs::read_to_string(&path).expect("a source"))))
    };
    all.into_iter().filter_map(module).collect()
}

/// For the children of each parent: which child uses which other one, with one place as an example.
type Uses = BTreeMap<Module, BTreeMap<String, BTreeMap<String, (Module, Module)>>>;

fn uses(modules: &BTreeMap<Module, String>) -> Uses {
    let mut uses = Uses::new();
    for (from, code) in modules {
        for to in named(code).iter().filter_map(|path| target(path, from, modules)) {
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                let edges = uses.entry(from[..common].to_vec()).or_default().entry(a.clone()).or_default();
                edges.entry(b.clone()).or_insert_with(|| (from.clone(), to.clone()));
            }
        }
    }
    uses
}

/// All modules that can be reached from a module.
fn reach(from: &str, edges: &BTreeMap<String, BTreeMap<String, (Module, Module)>>) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(module) = next.pop() {
        for to in edges.get(&module).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    reached
}

/// The circles among the children of one parent.
fn circles(edges: &BTreeMap<String, BTreeMap<String, (Module, Module)>>) -> BTreeSet<Vec<String>> {
    let all: BTreeMap<_, _> = edges.keys().map(|from| (from, reach(from, edges))).collect();
    let circle = |from: &String| -> Vec<String> {
        let back = |to: &&String| all.get(to).is_some_and(|reached| reached.contains(from));
        all[from].iter().filter(back).cloned().collect()
    };
    all.keys().map(|from| circle(from)).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn modules_do_not_use_each_other_in_a_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("crates");
    let mut found = Vec::new();
    for entry in fs::read_dir(&crates).expect("the crates") {
        let path = entry.expect("a crate").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        for (parent, edges) in uses(&modules(&path.join("src"))) {
            for circle in circles(&edges) {
                let parent = parent.join("::");
                found.push(format!("{name} {parent} {circle:?}"));
                for (from, to) in edges.iter().filter(|(from, _)| circle.contains(from)) {
                    for (_, (at, used)) in to.iter().filter(|(to, _)| circle.contains(to)) {
                        found.push(format!("    {from}: {} uses {}", at.join("::"), used.join("::")));
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "these modules use each other in a circle:\n{}", found.join("\n"));
}

/// The maximum of a file's lines, with its comments and without the tests at its end.
const LONGEST: usize = 600;

#[test]
fn a_file_does_one_job() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("crates");
    let mut all = Vec::new();
    files(&crates, &mut all);
    let length = |path: &PathBuf| {
        let inside = path.strip_prefix(&crates).ok()?;
        let is_source = inside.extension()? == "rs" && inside.iter().any(|part| part == "src");
        let is_test = inside.with_extension("").iter().any(|part| part == "tests");
        let text = (is_source && !is_test).then(|| fs::read_to_string(path).expect("a source"))?;
        let lines = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count();
        (lines > LONGEST).then(|| format!("{}: {lines} lines", inside.display()))
    };
    let long: Vec<_> = all.iter().filter_map(length).collect();
    assert!(all.len() > 100 && long.is_empty(), "more than {LONGEST} lines without tests:\n{}", long.join("\n"));
}

#[test]
fn a_circle_is_found() {
    let texts = [
        ("", "pub use a::A; mod a; mod b; mod c;"),
        ("a", "use crate::{b::{B, inner}, c}; // use crate::d::D;\nstruct A(&'static str, B);"),
        ("b", "fn b() -> super::c::C { let quoted = \"use crate::d;\"; c() }"),
        ("c", "use super::a as other;\nfn c() {}"),
        ("d", "pub use crate::a::A;"),
    ];
    let modules = |texts: &[(&str, &str)]| -> BTreeMap<Module, String> {
        let module = |name: &str| name.split("::").filter(|word| !word.is_empty()).map(str::to_owned).collect();
        texts.iter().map(|(name, text)| (module(name), code(text))).collect()
    };
    let all = uses(&modules(&texts));
    let circle = ["a", "b", "c"].map(str::to_owned).to_vec();
    assert_eq!(circles(&all[&Vec::new()]), BTreeSet::from([circle]));
    // Without one of the edges, there is no circle.
    let mut open = texts;
    open[3].1 = "fn c() {}";
    assert!(uses(&modules(&open)).values().all(|edges| circles(edges).is_empty()));
}
