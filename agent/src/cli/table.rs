//! Columns that line up.

use std::fmt::{Display, Write as _};

use clap::builder::styling::Style;

/// One cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    /// Text, to the left.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new(), right: false }
    }

    /// A number, to the right.
    #[must_use]
    pub fn number(number: impl Display) -> Self {
        Self { text: format!("{number}"), style: Style::new(), right: true }
    }

    /// In a style.
    #[must_use]
    pub fn styled(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

/// Lays out a heading and rows: two spaces between columns, none at the end of a line.
#[must_use]
pub fn render(heading: Vec<Cell>, rows: Vec<Vec<Cell>>) -> String {
    let lines: Vec<Vec<Cell>> = std::iter::once(heading).chain(rows).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(|cell| cell.text.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        // Spaces wait until something follows them.
        let mut pending = 0;
        for (cell, width) in line.iter().zip(&widths) {
            let space = width - cell.text.chars().count();
            let before = pending + if cell.right { space } else { 0 };
            let style = cell.style;
            // Writing to a string does not fail.
            let _ = write!(out, "{:before$}{style}{}{style:#}", "", cell.text);
            pending = 2 + if cell.right { 0 } else { space };
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_to_the_left_numbers_to_the_right_no_trailing_spaces() {
        let heading = vec![Cell::text("NAME"), Cell::number("N"), Cell::text("STATE")];
        let rows = vec![
            vec![Cell::text("a"), Cell::number(100), Cell::text("")],
            vec![Cell::text("größer"), Cell::number(7), Cell::text("ok")],
        ];
        assert_eq!(render(heading, rows), "NAME      N  STATE\na       100\ngrößer    7  ok\n");
    }
}
