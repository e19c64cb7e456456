//! The positions of sections and keys in a file, for [`edit`](crate::conf::edit).

use super::{Line, Piece};
use crate::conf::keys::{Form, Kind};
use std::ops::Range;

/// The parts of a file that was parsed, in its order.
#[derive(Debug, Default)]
pub(in crate::conf) struct Layout {
    pub(in crate::conf) sections: Vec<SectionLayout>,
    /// The lines of `# Name = …` comments that belong to no peer.
    pub(in crate::conf) stray_names: Vec<Range<usize>>,
}

/// A section. Byte ranges are relative to the whole text. A range of a line includes the line's end.
#[derive(Debug)]
pub(in crate::conf) struct SectionLayout {
    /// The index of the peer; `None` for `[Interface]`.
    pub(in crate::conf) peer: Option<usize>,
    /// The line of the header.
    pub(in crate::conf) header: Range<usize>,
    /// The comments that name the peer, including comments that another such comment overrides.
    pub(in crate::conf) names: Vec<NameLayout>,
    /// The lines with a key.
    pub(in crate::conf) entries: Vec<EntryLayout>,
}

/// A `# Name = …` comment.
#[derive(Debug)]
pub(in crate::conf) struct NameLayout {
    pub(in crate::conf) line: Range<usize>,
    pub(in crate::conf) value: Range<usize>,
}

/// A line with a key.
#[derive(Debug)]
pub(in crate::conf) struct EntryLayout {
    pub(in crate::conf) key: &'static Form,
    pub(in crate::conf) line: Range<usize>,
    /// The value without blanks around it. Except for a command, it is also without a comment.
    pub(in crate::conf) value: Range<usize>,
}

impl Layout {
    pub(super) fn section(&mut self, header: Piece<'_>, peer: Option<usize>) {
        self.sections.push(SectionLayout { peer, header: header.whole_line(), names: Vec::new(), entries: Vec::new() });
    }

    pub(super) fn entry(&mut self, key: &'static Form, line: Line<'_>) {
        let value = if key.kind == Kind::Lines { line.raw } else { line.value };
        if let Some(section) = self.sections.last_mut() {
            section.entries.push(EntryLayout { key, line: value.whole_line(), value: value.start..value.end });
        }
    }

    pub(super) fn stray_name(&mut self, name: Piece<'_>) {
        self.stray_names.push(name.whole_line());
    }

    pub(super) fn name(&mut self, name: Piece<'_>) {
        if let Some(section) = self.sections.last_mut() {
            section.names.push(NameLayout { line: name.whole_line(), value: name.start..name.end });
        }
    }
}

impl Piece<'_> {
    /// The line of this piece, with its end.
    fn whole_line(self) -> Range<usize> {
        let end = self.text[self.end..].find('\n').map_or(self.text.len(), |at| self.end + at + 1);
        self.line_start..end
    }
}
