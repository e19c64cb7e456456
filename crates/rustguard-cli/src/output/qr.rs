//! QR codes on a terminal. Each character shows two modules.

use anyhow::Result;
use fast_qr::{ECL, Mode, QRBuilder};

/// The number of light modules around the code on each side (ISO/IEC 18004, section 9.1).
const QUIET: usize = 4;

/// Draws the code of a text for a terminal with light characters on a dark background. Light modules are characters,
/// and dark modules are background.
pub(crate) fn draw(text: &str) -> Result<String> {
    // The lowest error correction gives the smallest code. A screen has no scratches.
    let code = QRBuilder::new(text).ecl(ECL::L).mode(Mode::Byte).build()?;
    let inside = |at: usize| at.checked_sub(QUIET).filter(|&at| at < code.size);
    let light = |row: usize, column: usize| match (inside(row), inside(column)) {
        (Some(row), Some(column)) => !code[row][column].value(),
        _ => true,
    };
    let side = code.size + 2 * QUIET;
    let mut picture = String::new();
    for row in (0..side).step_by(2) {
        picture.extend((0..side).map(|column| match (light(row, column), row + 1 < side && light(row + 1, column)) {
            (true, true) => '█',
            (true, false) => '▀',
            (false, true) => '▄',
            (false, false) => ' ',
        }));
        picture.push('\n');
    }
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The upper left corner: four rows of quiet zone in two lines, then the finder pattern (section 6.3.3).
    #[test]
    fn light_on_dark_with_a_quiet_zone() {
        let picture = draw("x").unwrap();
        let lines: Vec<_> = picture.lines().collect();
        // Version 1 has 21 modules.
        assert_eq!(lines.len(), 15);
        assert!(lines.iter().all(|line| line.chars().count() == 29), "{picture}");
        assert!(lines[..2].iter().all(|line| line.chars().all(|c| c == '█')), "{picture}");
        let finder: Vec<String> = lines[2..6].iter().map(|line| line.chars().skip(QUIET).take(8).collect()).collect();
        assert_eq!(finder, [" ▄▄▄▄▄ █", " █   █ █", " █▄▄▄█ █", "▄▄▄▄▄▄▄█"], "{picture}");
        assert!(lines[14].chars().all(|c| c == '▀'), "{picture}");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert!(draw(&"x".repeat(2_953)).is_ok());
        assert!(draw(&"x".repeat(2_954)).is_err());
    }
}
