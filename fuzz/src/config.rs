//! Configuration files.
use rustguard_device::conf::{Severity, parse_bytes};

/// Any bytes are a configuration or have an error that says why not; every place reported lies inside the file; and what was
/// understood, written and read again, is written the same.
pub fn config(input: &[u8]) {
    let parsed = parse_bytes(input);
    let refused = parsed.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    assert_eq!(refused, parsed.config.is_none(), "{:?}", parsed.diagnostics);
    if let Ok(text) = std::str::from_utf8(input) {
        for diagnostic in &parsed.diagnostics {
            let Some(span) = diagnostic.span else { continue };
            assert!(text.get(span.range()).is_some(), "not a place in the file: {diagnostic:?}");
        }
    }
    if let Some(config) = parsed.config {
        let written = config.to_text();
        let again = parse_bytes(written.as_bytes());
        let read = again.config.unwrap_or_else(|| panic!("refuses its own writing: {:?}", again.diagnostics));
        assert_eq!(*read.to_text(), *written, "another configuration after writing and reading");
    }
}
