//! Checks that existing tests back each "cannot" of SECURITY.md, as listed in `docs/claims.md`.
use anyhow::{Context, Result, ensure};
use std::{fs, path::Path};

const SECURITY: &str = include_str!("../../SECURITY.md");
const CLAIMS: &str = include_str!("../../docs/claims.md");

/// The first two cells of each row: the attacker, and what the attacker cannot do.
fn table(text: &str) -> Vec<(String, String)> {
    let rows = text.lines().skip_while(|line| !line.starts_with("| Somebody who |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
    })
    .collect()
}

/// A claim, and the file and function that test it.
struct Claim<'t> {
    words: &'t str,
    tests: Vec<(&'t str, &'t str)>,
}

/// Each attacker with the claims about it.
fn claims(text: &str) -> Result<Vec<(&str, Vec<Claim<'_>>)>> {
    let mut all: Vec<(&str, Vec<Claim<'_>>)> = Vec::new();
    for line in text.lines() {
        if let Some(who) = line.strip_prefix("## ") {
            all.push((who, Vec::new()));
        } else if let Some(words) = line.strip_prefix("- ") {
            let (_, claims) = all.last_mut().with_context(|| format!("`{words}` stands below nobody"))?;
            claims.push(Claim { words, tests: Vec::new() });
        } else if let Some(test) = line.strip_prefix("  - `") {
            let named = test.strip_suffix('`').and_then(|test| test.split_once("` `"));
            let named = named.with_context(|| format!("`{line}` is not a file and a function"))?;
            let claim = all.last_mut().and_then(|(_, claims)| claims.last_mut());
            claim.with_context(|| format!("`{line}` stands below no claim"))?.tests.push(named);
        }
    }
    Ok(all)
}

/// Checks that both pages say the same; an error names the row that differs.
fn compare(table: &[(String, String)], claims: &[(&str, Vec<Claim<'_>>)]) -> Result<()> {
    for ((who, cannot), (whose, claims)) in table.iter().zip(claims) {
        ensure!(who == whose, "the row of SECURITY.md is `{who}`, the section of docs/claims.md `{whose}`");
        let words: Vec<&str> = claims.iter().map(|claim| claim.words).collect();
        // Semicolons where a claim has a comma.
        let same = [", ", "; "].iter().any(|between| words.join(between) == *cannot);
        ensure!(same, "{who}:\nSECURITY.md:    {cannot}\ndocs/claims.md: {}", words.join("; "));
    }
    ensure!(table.len() == claims.len(), "{} rows, {} sections", table.len(), claims.len());
    Ok(())
}

/// Checks that a source has a test of this name, and that the test is not ignored.
fn is_run(source: &str, name: &str) -> Result<()> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let start = |line: &str| ["fn ", "async fn "].iter().any(|word| line.starts_with(&format!("{word}{name}(")));
    let at = lines.iter().position(|line| start(line)).context("there is no such function")?;
    let attributes: Vec<&str> =
        lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//")).copied().collect();
    let test = attributes.iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
    ensure!(test, "it is no test");
    ensure!(!attributes.iter().any(|line| line.starts_with("#[ignore")), "it is ignored");
    Ok(())
}

#[test]
fn every_claim_has_tests() {
    let table = table(SECURITY);
    let claims = claims(CLAIMS).unwrap();
    assert!(table.len() >= 9, "SECURITY.md's table was not found");
    compare(&table, &claims).unwrap_or_else(|error| panic!("{error:#}"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for (who, claims) in &claims {
        for claim in claims {
            if claim.tests.is_empty() {
                wrong.push(format!("{who}: {}: no test", claim.words));
            }
            for (file, name) in &claim.tests {
                let source = fs::read_to_string(root.join(file)).context("the file is not there");
                if let Err(error) = source.and_then(|source| is_run(&source, name)) {
                    wrong.push(format!("{who}: {}: {file} {name}: {error:#}", claim.words));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The failures that this check must detect.
#[test]
fn what_does_not_hold_is_found() {
    let source = "#[test]\nfn a() {}\n\n    #[tokio::test]\n    // why\n    async fn b() {}\nfn c() {}\n#[test]\n#[ignore = \"x\"]\nfn d() {}";
    for (name, good) in [("a", true), ("b", true), ("c", false), ("d", false), ("e", false)] {
        assert_eq!(is_run(source, name).is_ok(), good, "{name}");
    }
    let text = "| Somebody who | cannot | can |\n|---|---|---|\n| looks | see, hear | smell |\n\nAfterwards.";
    let table = table(text);
    assert_eq!(table, [("looks".to_owned(), "see, hear".to_owned())]);
    for (text, good) in [
        ("## looks\n- see\n  - `a.rs` `b`\n- hear", true),
        ("## looks\n- see, hear", true),
        ("## looks\n- see", false),
        ("## looks\n- hear\n- see", false),
        ("## stares\n- see\n- hear", false),
        ("## looks\n- see\n- hear\n## stares\n", false),
        ("", false),
    ] {
        assert_eq!(compare(&table, &claims(text).unwrap()).is_ok(), good, "{text}");
    }
    for text in ["- see", "## looks\n  - `a.rs` `b`", "## looks\n- see\n  - `a.rs`"] {
        assert!(claims(text).is_err(), "{text}");
    }
}
