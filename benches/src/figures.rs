//! Functions that the benchmarks of running programs share.

use anyhow::{Context as _, Result, ensure};
use std::{fmt::Write as _, fs, path::Path, thread, time::Duration};

/// The measured values of each row.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<(String, Vec<f64>)>);

impl Figures {
    pub(crate) fn add(&mut self, row: impl Into<String>, values: impl IntoIterator<Item = f64>) {
        self.0.push((row.into(), values.into_iter().collect()));
    }

    /// A table of all rows: the median, the lowest and the highest value, and the target.
    pub(crate) fn table(&self, target: &str, rows: &[(&str, &str)]) -> Result<String> {
        let mut text = format!("|  |  | {target} |\n|---|---|---|\n");
        for (name, target) in rows {
            let values = self.0.iter().find(|(row, _)| row == name);
            let (_, values) = values.with_context(|| format!("nothing was measured for {name}"))?;
            ensure!(!values.is_empty(), "no value for {name}");
            let mut values = values.clone();
            values.sort_by(f64::total_cmp);
            writeln!(text, "| {name} | {} | {target} |", spread(&values))?;
        }
        Ok(text)
    }
}

/// The resident set of a process (its ID, or `self`), in bytes.
pub(crate) fn resident(process: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in its status")?;
    let kib: u64 = line.split_whitespace().next().context("VmRSS without a number")?.parse()?;
    Ok(kib * 1024)
}

/// CPU time of all threads of a process until now, in seconds. It comes from the scheduler's clock, because `stat`
/// counts in ticks of 10 ms.
pub(crate) fn cpu_seconds(id: u32) -> Result<f64> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{id}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += stat.split_whitespace().next().context("an empty schedstat")?.parse::<u64>()?;
    }
    Ok(nanos as f64 / 1e9)
}

/// The processor, its cores and the kernel, for the heading of a table.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown CPU");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{}, {cores} core{} for everything; Linux {}",
        model.trim_start_matches(['\t', ':', ' ']),
        if cores == 1 { "" } else { "s" },
        read("/proc/sys/kernel/osrelease").trim(),
    )
}

/// The median of sorted values in bold, with the lowest and the highest value. A dash if there are no values.
pub(crate) fn spread(values: &[f64]) -> String {
    match *values {
        [] => "–".to_owned(),
        [one] => format!("**{}**", number(one)),
        [low, .., high] => format!("**{}** ({}–{})", number(median(values)), number(low), number(high)),
    }
}

/// The spread of the existing values, and how many are missing: the median alone would hide failed rounds.
pub(crate) fn spread_with_failures(values: impl Iterator<Item = Option<f64>>) -> String {
    let all: Vec<Option<f64>> = values.collect();
    let mut values: Vec<f64> = all.iter().flatten().copied().collect();
    values.sort_by(f64::total_cmp);
    let failed = all.len() - values.len();
    if failed > 0 && !values.is_empty() { format!("{}, {failed} never", spread(&values)) } else { spread(&values) }
}

/// The share of the processors that other programs use, measured while this one sleeps.
pub(crate) fn busy(time: Duration) -> Result<f64> {
    let read = || -> Result<[u64; 2]> {
        let text = fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("an empty /proc/stat")?;
        let times: Vec<u64> = line.split_whitespace().skip(1).take(8).map(str::parse).collect::<Result<_, _>>()?;
        Ok([times.iter().sum(), times[3] + times[4]])
    };
    let [all, idle] = read()?;
    thread::sleep(time);
    let [later, idle_later] = read()?;
    Ok(1.0 - (idle_later - idle) as f64 / (later - all).max(1) as f64)
}

/// The lines that enclose the table in a document.
const MARKS: [&str; 2] = ["<!-- figures -->\n", "<!-- end of figures -->\n"];

/// A document with a place for a table.
pub struct Document<'a>(&'a Path);

impl<'a> Document<'a> {
    /// # Errors
    /// If it cannot be read, or has no place for a table. This is checked before the hour of measuring.
    pub fn new(path: &'a Path) -> Result<Self> {
        let document = Self(path);
        document.with("")?;
        Ok(document)
    }

    /// Replaces the document's table.
    ///
    /// # Errors
    /// If the document cannot be read or written.
    pub fn put(&self, table: &str) -> Result<()> {
        fs::write(self.0, self.with(table)?).with_context(|| format!("cannot write {}", self.0.display()))
    }

    fn with(&self, table: &str) -> Result<String> {
        let read = fs::read_to_string(self.0).map_err(Into::into);
        read.and_then(|text| inserted(&text, table))
            .with_context(|| format!("no table can be put into {}", self.0.display()))
    }
}

/// The document with this table in place of its old one.
fn inserted(document: &str, table: &str) -> Result<String> {
    let parts = document.split_once(MARKS[0]).and_then(|(before, rest)| Some((before, rest.split_once(MARKS[1])?.1)));
    let (before, after) =
        parts.with_context(|| format!("there is no line {}, or none that ends it", MARKS[0].trim()))?;
    Ok(format!("{before}{}{}\n{}{after}", MARKS[0], table.trim_end(), MARKS[1]))
}

/// The median of sorted values. There has to be at least one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// A number with three digits, or with all digits before the decimal point.
pub(crate) fn number(value: f64) -> String {
    let decimals = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_their_spread() {
        assert_eq!(median(&[1.0, 2.0, 4.0, 5.0]), 3.0);
        assert_eq!(spread(&[1.0, 2.5, 400.0]), "**2.50** (1.00–400)");
        assert_eq!(spread(&[12.34]), "**12.3**");
        assert_eq!(spread(&[]), "–");
    }

    #[test]
    fn what_did_not_happen_is_not_hidden() {
        assert_eq!(spread_with_failures([Some(30.0), None, Some(10.0)].into_iter()), "**20.0** (10.0–30.0), 1 never");
        assert_eq!(spread_with_failures([None].into_iter()), "–");
    }

    #[test]
    fn a_document_without_a_place_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.md");
        let refused = |path| Document::new(path).map(drop).unwrap_err().to_string();
        assert!(refused(&path).contains("page.md"));
        fs::write(&path, "no place\n").unwrap();
        assert!(refused(&path).contains("page.md"));
        fs::write(&path, "<!-- figures -->\n<!-- end of figures -->\n").unwrap();
        Document::new(&path).unwrap().put("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "<!-- figures -->\nnew\n<!-- end of figures -->\n");
    }

    #[test]
    fn the_table_replaces_the_one_before() {
        let document = "a\n<!-- figures -->\nold\n<!-- end of figures -->\nb\n";
        let expected = "a\n<!-- figures -->\nnew\n<!-- end of figures -->\nb\n";
        assert_eq!(inserted(document, "new\n\n").unwrap(), expected);
        assert!(inserted("a\n", "new").is_err());
        for ours in [include_str!("../../docs/compare.md"), include_str!("../../docs/links.md")] {
            assert!(inserted(ours, "new").unwrap().contains("\nnew\n"));
        }
    }
}
