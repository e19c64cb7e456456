//! Tables and fields that fit a width: columns are shortened, and then left out, by their importance.

use super::colour::{Painted, Palette};

/// The width of a page in columns, if no terminal has another width.
pub(crate) const WIDTH: usize = 80;

/// How a cell is painted.
pub(crate) type Paint = fn(Palette, String) -> Painted<String>;

/// A column of a table.
pub(crate) struct Column {
    heading: &'static str,
    cells: Vec<String>,
    paints: Vec<Option<Paint>>,
    /// Columns with the highest number are left out first; 0 stays.
    left_out: u8,
    /// Its cells may be shortened to this number of characters.
    shortest: Option<usize>,
}

impl Column {
    /// A column that stays as it is.
    pub(crate) fn new(heading: &'static str, cells: impl Iterator<Item = String>) -> Self {
        Self { heading, cells: cells.collect(), paints: Vec::new(), left_out: 0, shortest: None }
    }

    /// The column is left out where the table is too wide, before those with lower numbers.
    pub(crate) fn left_out(mut self, order: u8) -> Self {
        self.left_out = order;
        self
    }

    /// Where the table is too wide, the cells are cut down to this number of characters.
    pub(crate) fn shortest(mut self, characters: usize) -> Self {
        self.shortest = Some(characters);
        self
    }

    /// Paints each cell, or leaves it as it is.
    pub(crate) fn painted(mut self, paints: impl Iterator<Item = Option<Paint>>) -> Self {
        self.paints = paints.collect();
        self
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(self.heading.chars().count())
    }

    /// The number of characters by which it can be shortened.
    fn slack(&self) -> usize {
        self.shortest.map_or(0, |shortest| self.width().saturating_sub(shortest.max(self.heading.chars().count())))
    }
}

/// The table, at most `width` columns wide. Columns without any text are left out.
pub(crate) fn table(mut columns: Vec<Column>, width: usize, palette: Palette) -> String {
    columns.retain(|column| column.cells.iter().any(|cell| !cell.is_empty()));
    let excess = loop {
        let total: usize = columns.iter().map(|column| column.width() + 2).sum();
        let excess = total.saturating_sub(2).saturating_sub(width);
        let slack: usize = columns.iter().map(Column::slack).sum();
        let least = columns.iter().enumerate().max_by_key(|(_, column)| column.left_out);
        match least.filter(|(_, column)| column.left_out > 0 && excess > slack) {
            Some((least, _)) => drop(columns.remove(least)),
            None => break excess,
        }
    };
    let mut excess = excess;
    let widths: Vec<usize> = columns
        .iter()
        .map(|column| {
            let cut = column.slack().min(excess);
            excess -= cut;
            column.width() - cut
        })
        .collect();
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let mut text = String::new();
    for row in std::iter::once(None).chain((0..rows).map(Some)) {
        let last = columns.len().saturating_sub(1);
        for (place, (column, &width)) in columns.iter().zip(&widths).enumerate() {
            let cell = row.map_or(column.heading, |row| &column.cells[row]);
            let cell = cut(cell, width);
            // Nothing follows the last cell, and the painted text has the width of the plain one.
            let cell = if place == last { cell } else { format!("{cell:width$}  ") };
            match row.and_then(|row| column.paints.get(row).copied().flatten()) {
                Some(paint) => text += &paint(palette, cell).to_string(),
                None => text += &cell,
            }
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

/// `key: value`, indented by two columns. Further lines are indented by four. A word that is longer than a line stays
/// whole.
pub(crate) fn field(key: &str, value: &str, width: usize, palette: Palette) -> String {
    let mut text = format!("  {}:", palette.strong(key));
    let mut used = key.chars().count() + 3;
    for word in value.split(' ') {
        let length = word.chars().count();
        if used + 1 + length > width && used > 4 {
            text += "\n    ";
            used = 4 + length;
        } else {
            text.push(' ');
            used += 1 + length;
        }
        text += word;
    }
    text.push('\n');
    text
}

/// The text, shortened to this number of characters.
fn cut(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    text.chars().take(characters.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(heading: &'static str, cells: [&str; 2]) -> Column {
        Column::new(heading, cells.into_iter().map(str::to_owned))
    }

    #[test]
    fn a_table_shortens_before_it_leaves_out_and_leaves_out_the_least_first() {
        let at = |width| {
            let columns = vec![
                column("NAME", ["laptop-of-zoe", "b"]).shortest(6),
                column("STATE", ["up", "down"]),
                column("MORE", ["123456", ""]).left_out(1),
                column("MOST", ["abcd", "e"]).left_out(2),
                column("NONE", ["", ""]),
            ];
            table(columns, width, Palette::PLAIN)
        };
        assert_eq!(
            at(80),
            "NAME           STATE  MORE    MOST\nlaptop-of-zoe  up     123456  abcd\nb              down           e\n"
        );
        assert_eq!(
            at(30),
            "NAME       STATE  MORE    MOST\nlaptop-o…  up     123456  abcd\nb          down           e\n"
        );
        assert_eq!(at(26), "NAME         STATE  MORE\nlaptop-of-…  up     123456\nb            down\n");
        assert_eq!(at(10), "NAME    STATE\nlapto…  up\nb       down\n");
    }

    #[test]
    fn a_long_value_is_folded() {
        let text = field("pool", "one two three", 12, Palette::PLAIN);
        assert_eq!(text, "  pool: one\n    two\n    three\n");
        assert_eq!(field("pool", &"x".repeat(30), 12, Palette::PLAIN).lines().count(), 2);
    }
}
