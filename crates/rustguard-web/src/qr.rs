//! QR codes, drawn as SVG.

use fast_qr::{ECL, Mode, QRBuilder};
use maud::{Markup, html};
use std::fmt::Write as _;

/// The number of light modules around the code on each side (ISO/IEC 18004, section 9.1).
const QUIET: usize = 4;

/// The code of a text. `None` if the text is too long.
pub(crate) fn draw(text: &str, label: &str) -> Option<Markup> {
    let code = QRBuilder::new(text).ecl(ECL::M).mode(Mode::Byte).build().ok()?;
    let side = code.size + 2 * QUIET;
    let mut path = String::new();
    for row in 0..code.size {
        for column in (0..code.size).filter(|&column| code[row][column].value()) {
            // Writing to a String cannot fail.
            let _ = write!(path, "M{} {}h1v1h-1z", column + QUIET, row + QUIET);
        }
    }
    Some(html! {
        svg.qr viewBox={ "0 0 " (side) " " (side) } role="img" aria-label=(label) shape-rendering="crispEdges" {
            rect width=(side) height=(side) fill="#fff" {}
            path d=(path) fill="#000" {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_quiet_zone_and_its_finder() {
        let svg = draw("x", "a <code>").unwrap().into_string();
        // Version 1 has 21 modules.
        assert!(svg.contains("viewBox=\"0 0 29 29\"") && svg.contains("a &lt;code&gt;"), "{svg}");
        let row: String = (0..7).map(|n| format!("M{} 4h1v1h-1z", n + QUIET)).collect();
        assert!(svg.contains(&format!("d=\"{row}")), "{svg}");
        assert!(draw(&"x".repeat(3_000), "").is_none());
    }
}
