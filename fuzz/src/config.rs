//! Configuration files.
use rustguard_quick::conf::{Severity, parse, to_text};

/// Any text is either a configuration or has an error. Every reported place is inside the file. A configuration that is
/// written and read again gives the same text once more.
pub fn config(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (config, diagnostics) = parse(&text);
    let refused = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    assert_eq!(refused, config.is_none(), "{diagnostics:?}");
    for diagnostic in &diagnostics {
        let bytes = diagnostic.span.bytes.clone();
        assert!(text.get(bytes).is_some(), "not a place in the file: {diagnostic:?}");
    }
    if let Some(config) = config {
        let written = to_text(&config);
        let (again, diagnostics) = parse(&written);
        let read = again.unwrap_or_else(|| panic!("refuses its own writing: {diagnostics:?}"));
        assert_eq!(*to_text(&read), *written, "another configuration after writing and reading");
    }
}
