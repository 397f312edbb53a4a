//! Writes a command's real output to stdout. A reader that has seen enough (`| head`) is no error.

use std::io::{ErrorKind, Write as _};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::exit::{self, Failure};
pub(crate) use crate::say::line;

/// Whether anybody still reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Go on.
    Listens,
    /// The pipe is closed: end quietly.
    Gone,
}

/// Writes `text` as it is.
pub(crate) fn print(text: &str) -> Result<Reader, Failure> {
    bytes(text.as_bytes())
}

/// Writes what need not be text.
pub(crate) fn bytes(bytes: &[u8]) -> Result<Reader, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::Listens),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::internal(format!("can not write to stdout: {error}"))),
    }
}

/// Writes one JSON object on a line of its own, the end of a command that only had to print.
pub(crate) fn json(value: &serde_json::Value) -> Result<u8, Failure> {
    done(&format!("{value}\n"))
}

/// The end of a command that only had to print.
pub(crate) fn done(text: &str) -> Result<u8, Failure> {
    print(text).map(|_| exit::OK)
}

/// The rows of a table, so far only with what its columns are called.
pub(crate) fn titles<const N: usize>(titles: [&str; N]) -> Vec<Vec<String>> {
    vec![titles.map(str::to_owned).into()]
}

/// Columns wide enough for what stands in them, two spaces apart. Control characters are escaped.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| line(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| wide(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let gap = width.saturating_sub(cell.width()) + 2;
            line.push_str(cell);
            line.push_str(&" ".repeat(gap));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// As much of a line as fits into so many columns of a terminal.
pub(crate) fn cut(line: &str, columns: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    line.chars().take_while(fits).collect()
}

/// Words in lines of at most 80 columns. The first line begins at column `margin`, and so do the others.
pub(crate) fn filled(text: &str, margin: usize) -> String {
    let (mut lines, mut column) = (String::new(), margin);
    for (place, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if place > 0 && column + 1 + length > 80 {
            lines.extend(["\n", &" ".repeat(margin)]);
            column = margin;
        } else if place > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines.push('\n');
    lines
}

/// A span that may be days: `3d04h`, else as [`short`](fencepost::backend::short) has it.
pub(crate) fn span(span: std::time::Duration) -> String {
    let hours = span.as_secs() / 3600;
    if hours < 48 {
        return fencepost::backend::short(span);
    }
    format!("{}d{:02}h", hours / 24, hours % 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[[&str; 2]]) -> Vec<Vec<String>> {
        cells.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    #[test]
    fn wide_characters_align() {
        let text = table(&rows(&[["NAME", "N"], ["請求書", "1"], ["e\u{301}", "2"]]));
        assert_eq!(text, "NAME    N\n請求書  1\ne\u{301}       2\n");
    }

    #[test]
    fn control_characters_are_escaped() {
        let text = table(&rows(&[["a\u{1b}[2Jb\n", "x\t"]]));
        assert_eq!(text, "a\\u{1b}[2Jb\\n  x\\t\n");
    }

    #[test]
    fn a_line_is_cut_where_the_terminal_ends() {
        assert_eq!(cut("請求書", 5), "請求");
        assert_eq!(cut("abc", 5), "abc");
    }
}
