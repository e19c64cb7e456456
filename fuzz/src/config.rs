//! Configuration files.
use rustguard_quick::conf::{Severity, parse, to_text};

/// Any text is a configuration or has an error that says why not; every place reported lies inside the file; and what was
/// understood, written and read again, is written the same.
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
