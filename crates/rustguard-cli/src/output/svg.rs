//! Drawing in SVG 1.1, as far as the pictures of this program need it. The colours suit light and dark surroundings.

use std::fmt::Write as _;

/// The style classes. The picture has its own background, so that it is readable everywhere. The second half is for
/// viewers that prefer dark colours.
const STYLE: &str = "\
text{font-family:ui-sans-serif,system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:13px;fill:#1c2733}\
.small{font-size:11px}.title{font-size:17px;font-weight:600}.strong{font-weight:600}\
.code{font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}\
.muted{fill:#5c6b7a}.background{fill:#ffffff}.box{fill:#f4f7fa;stroke:#b9c4cf}.here{fill:#e3effc;stroke:#0b66c3;stroke-width:2}\
.line{fill:none;stroke:#8a99a8;stroke-width:1.5}.grid{stroke:#e2e7ec}.good{fill:none;stroke:#1f8a55;stroke-width:2.5}\
.bad{fill:none;stroke:#cc3b3b;stroke-width:2.5}.dash{stroke-dasharray:6 4}.dots{stroke-dasharray:1.5 4;stroke-linecap:round}\
.fill-good{fill:#3fae78}.fill-bad{fill:#cc3b3b}.fill-slow{fill:#e0a83a}.fill-none{fill:#dde3e9}.text-bad{fill:#b32d2d}\
@media(prefers-color-scheme:dark){text{fill:#e4e9ef}.muted{fill:#97a5b4}.background{fill:#12171d}.box{fill:#1c242d;stroke:#46535f}\
.here{fill:#15314d;stroke:#62aef5}.line{stroke:#75838f}.grid{stroke:#2a333d}.good{stroke:#4cc38a}.bad{stroke:#f0716d}\
.fill-good{fill:#37a671}.fill-bad{fill:#e05a55}.fill-slow{fill:#d79c2f}.fill-none{fill:#2f3a45}.text-bad{fill:#f0716d}}";

/// A picture in progress. Later elements cover earlier ones.
#[derive(Default)]
pub(crate) struct Svg(String);

impl Svg {
    /// Text whose baseline starts at a point. With the class `end` it ends there, and with `middle` it has its middle
    /// there.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        self.element(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(text)));
    }

    /// A box with rounded corners. A viewer shows `hint` while the pointer is on the box.
    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, hint: &str) {
        let hint = if hint.is_empty() { String::new() } else { format!("<title>{}</title>", escape(hint)) };
        self.element(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"6\" class=\"{class}\">{hint}</rect>"
        ));
    }

    /// A bar with sharp corners.
    pub(crate) fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        self.element(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" class=\"{class}\"/>"
        ));
    }

    /// A straight line.
    pub(crate) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.element(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        ));
    }

    /// A curve that leaves and arrives horizontally.
    pub(crate) fn curve(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let middle = x1.midpoint(x2);
        self.element(format_args!(
            "<path d=\"M{x1:.1} {y1:.1}C{middle:.1} {y1:.1} {middle:.1} {y2:.1} {x2:.1} {y2:.1}\" class=\"{class}\"/>"
        ));
    }

    /// Returns the whole file. Screen readers and the browser's tab use `title`.
    pub(crate) fn finish(self, (width, height): (f64, f64), title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"background\"/>\n{}</svg>\n",
            escape(title),
            self.0
        )
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{element}");
    }
}

/// Escapes a text for XML. Control characters are replaced, because XML 1.0 does not allow them.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_named_cannot_leave_its_element() {
        let mut svg = Svg::default();
        svg.text((1.0, 2.0), "small", "a</text>&\"\u{1b}\u{0}");
        svg.rect((0.0, 0.0), (1.0, 1.0), "box", "<b>");
        let text = svg.finish((10.0, 20.0), "</title>");
        assert!(text.contains(">a&lt;/text&gt;&amp;&quot;\u{fffd}\u{fffd}</text>"), "{text}");
        assert!(
            text.contains("<title>&lt;b&gt;</title></rect>") && text.contains("<title>&lt;/title&gt;</title>"),
            "{text}"
        );
        assert_eq!(text.matches("</text>").count(), 1);
    }
}
