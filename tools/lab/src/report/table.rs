//! Tables for terminals and documents.

use std::fmt::Write;

/// A table. The first column is aligned to the left, the others to the right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column headings.
    pub fn new<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Self {
        Self { header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row. Missing cells are empty.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table as Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells =
                (0..self.header.len()).map(|i| cells.get(i).map_or("", String::as_str).replace('|', "\\|"));
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let mut text = line(&self.header);
        let rule = (0..self.header.len()).map(|i| if i == 0 { "---" } else { "---:" });
        let _ = writeln!(text, "|{}|", rule.collect::<Vec<_>>().join("|"));
        self.rows.iter().for_each(|row| text += &line(row));
        text
    }

    /// Formats the table for a terminal: aligned, with two blanks between columns.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row.get(column)).chain([self.header.get(column)]);
            cells.flatten().map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |cells: &[String]| {
            let mut text = String::new();
            for (column, width) in widths.iter().enumerate() {
                let cell = cells.get(column).map_or("", String::as_str);
                let _ = if column == 0 {
                    write!(text, "{cell:<width$}")
                } else {
                    write!(text, "  {cell:>width$}")
                };
            }
            format!("{}\n", text.trim_end())
        };
        std::iter::once(&self.header).chain(&self.rows).map(|row| line(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_with_missing_cells_has_markdown_and_text_forms() {
        let mut table = Table::new(["program", "rate", "ratio"]);
        table.row(["a | b", "1.00", "1"]);
        table.row(["c", "10.0"]);
        assert_eq!(
            table.markdown(),
            "| program | rate | ratio |\n|---|---:|---:|\n| a \\| b | 1.00 | 1 |\n| c | 10.0 |  |\n"
        );
        assert_eq!(table.text(), "program  rate  ratio\na | b    1.00      1\nc        10.0\n");
    }
}
