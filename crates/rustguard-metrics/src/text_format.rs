//! Converts OpenMetrics to the older text format of Prometheus, version 0.0.4, for `curl`, `promtool check metrics` and
//! scrapers that do not support OpenMetrics. The samples are the same in both. Only the metadata differs: in
//! OpenMetrics, HELP and TYPE name a family without the suffix of its samples.

/// Converts a page.
pub(crate) fn from_openmetrics(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + 1024);
    // HELP precedes the TYPE, which determines the name.
    let mut help: Option<(&str, &str)> = None;
    for line in page.split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter\n" => ("_total", kind),
                "info\n" => ("_info", "gauge\n"),
                _ => ("", kind),
            };
            let described = help.take().filter(|(described, _)| *described == name);
            let parts = described.map(|(_, help)| ["# HELP ", name, suffix, " ", help]);
            text.extend(parts.into_iter().flatten());
            text.extend(["# TYPE ", name, suffix, " ", kind]);
        } else if !line.starts_with("# UNIT ") && line != "# EOF\n" {
            text.push_str(line);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_names_the_samples() {
        let page = "# HELP a_bytes Bytes of a\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"# EOF\"} 1\n\
                    # HELP b B's\n# TYPE b info\nb_info{v=\"1\"} 1\n# HELP c C\n# TYPE c gauge\nc 2\n# EOF\n";
        assert_eq!(
            from_openmetrics(page),
            "# HELP a_bytes_total Bytes of a\n# TYPE a_bytes_total counter\na_bytes_total{x=\"# EOF\"} 1\n\
             # HELP b_info B's\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n# HELP c C\n# TYPE c gauge\nc 2\n"
        );
    }
}
