//! Configuration files.
use rustguard_device::EndpointSpec;
use rustguard_quick::conf::{Severity, edit, parse, strip, to_text};

/// Any text is either a configuration or has an error. Every reported place is inside the file. A configuration that is
/// written, read and written again gives the same text. Editing a file with its own configuration changes nothing, and
/// the text for `wg` has no endpoint through a peer.
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
        let edited = edit(&text, &config).unwrap_or_else(|error| panic!("cannot edit: {error}"));
        assert_eq!(*edited, *text, "nothing was to be changed");
        let stripped = strip(&text).unwrap_or_else(|diagnostics| panic!("cannot strip: {diagnostics:?}"));
        // Stripping removes a hook that sets the private key, and then the key is missing.
        let stripped = parse(&stripped).0.unwrap_or_default();
        let mut endpoints = stripped.peers.iter().flat_map(|peer| &peer.endpoints);
        assert!(!endpoints.any(|path| matches!(path.endpoint, EndpointSpec::Peer(_))), "wg cannot read it");
        let written = to_text(&config);
        let (again, diagnostics) = parse(&written);
        let read = again.unwrap_or_else(|| panic!("refuses its own writing: {diagnostics:?}"));
        assert_eq!(*to_text(&read), *written, "another configuration after writing and reading");
    }
}
