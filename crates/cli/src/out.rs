//! Writes the output of a command to stdout. A reader that closes the pipe early (`| head`) is not an error.

use std::io::{ErrorKind, Write as _};

use serde_json::Value;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::exit::{self, Failure};
pub(crate) use crate::say::line;

/// Whether stdout still has a reader.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Present,
    /// The pipe is closed: end quietly.
    Gone,
}
pub(crate) fn print(text: &str) -> Result<Reader, Failure> {
    bytes(text.as_bytes())
}

/// Writes bytes that need not be text.
pub(crate) fn bytes(bytes: &[u8]) -> Result<Reader, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::Present),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::internal(format!("cannot write to stdout: {error}"))),
    }
}

/// Writes one JSON object on a line, as the result of a command.
pub(crate) fn json(value: &Value) -> Result<u8, Failure> {
    done(&format!("{value}\n"))
}

/// Writes text, as the result of a command.
pub(crate) fn done(text: &str) -> Result<u8, Failure> {
    print(text).map(|_| exit::OK)
}

/// Writes the result of a command: `value` with `--json`, else `text`.
pub(crate) fn result(as_json: bool, value: &Value, text: &str) -> Result<u8, Failure> {
    if as_json { json(value) } else { done(text) }
}

/// The rows of a table, so far only the header.
pub(crate) fn header<const N: usize>(titles: [&str; N]) -> Vec<Vec<String>> {
    vec![titles.map(str::to_owned).into()]
}

/// A row of a table that has a name and a value.
pub(crate) fn pair(name: &str, value: impl Into<String>) -> Vec<String> {
    vec![name.to_owned(), value.into()]
}

/// A cell of a table whose value may be unknown.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Aligns the columns, two spaces apart. Control characters are escaped.
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

/// The part of a line that fits into so many columns of a terminal.
pub(crate) fn cut(line: &str, columns: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    line.chars().take_while(fits).collect()
}

/// Wraps a text at 80 columns. All lines begin at column `margin`; the first one is not indented here.
pub(crate) fn wrapped(text: &str, margin: usize) -> String {
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

/// A span that can be days: `3d04h`, else as [`short`](fencepost::backend::short) formats it.
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
    fn line_is_cut_at_the_width_of_the_terminal() {
        assert_eq!(cut("請求書", 5), "請求");
        assert_eq!(cut("abc", 5), "abc");
    }
}
