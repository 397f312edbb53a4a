//! The timeline as text.

use std::fmt::Write as _;

use super::{Cell, Picture, Tone, Track};
use crate::event::Actor;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Line and block characters; else ASCII.
    pub unicode: bool,
    /// Colours.
    pub colour: bool,
}

impl Style {
    /// Depends on the locale, on whether stdout is a terminal, and on `NO_COLOR` (<https://no-color.org>).
    #[must_use]
    pub fn of_stdout() -> Self {
        use std::io::IsTerminal as _;
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        let unicode = locale.contains("utf-8") || locale.contains("utf8");
        let dumb = set("TERM").is_none_or(|term| term == "dumb");
        let colour = std::io::stdout().is_terminal() && set("NO_COLOR").is_none() && !dumb;
        Self { unicode, colour }
    }

    const fn glyph(self, cell: &Cell) -> &'static str {
        let happens = !cell.text.is_empty();
        match (cell.track, self.unicode) {
            (Track::Nothing, true) if happens => "○",
            (Track::Nothing, false) if happens => "o",
            (Track::Nothing, _) => " ",
            (Track::Frozen, true) => "░",
            (Track::Frozen, false) => "#",
            (_, true) if happens => "●",
            (_, false) if happens => "*",
            (Track::Waits, true) => "┆",
            (Track::Waits, false) => ":",
            (Track::Works, true) => "│",
            (Track::Held(_), true) => "┃",
            (Track::Works | Track::Held(_), false) => "|",
        }
    }

    fn paint(self, code: Option<&str>, text: &str) -> String {
        match code {
            Some(code) if self.colour && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

const fn track_code(track: Track) -> Option<&'static str> {
    match track {
        Track::Frozen => Some("36"),
        Track::Held(Actor::A) => Some("35"),
        Track::Held(Actor::B) => Some("34"),
        _ => None,
    }
}

const fn tone_code(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Plain => None,
        Tone::Good => Some("32"),
        Tone::Bad => Some("31"),
    }
}

impl Picture {
    /// The timeline as lines of text.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut text = format!("{}\n\n", style.paint(Some("1"), &self.title));
        let mut line = format!("{:>8}", "time");
        for (lane, name) in self.lanes.iter().enumerate() {
            let _ = write!(
                line,
                "  {}{}",
                style.paint(Some("1"), name),
                " ".repeat(self.width(lane) + 2 - name.chars().count(),)
            );
        }
        let mut push = |line: &str| {
            text.push_str(line.trim_end());
            text.push('\n');
        };
        push(&line);
        for row in &self.rows {
            let mut line = match row.at {
                Some(at) => format!("{:>7.2}s", at.as_secs_f64()),
                None => " ".repeat(8),
            };
            for (lane, cell) in row.cells.iter().enumerate() {
                let balance = lane == super::RESOURCE;
                let glyph = if balance { "" } else { style.glyph(cell) };
                let gap = self.width(lane) - cell.text.chars().count() + usize::from(balance) * 2;
                let _ = write!(
                    line,
                    "  {}{}{}{}",
                    style.paint(track_code(cell.track), glyph),
                    if balance { "" } else { " " },
                    style.paint(tone_code(cell.tone), &cell.text),
                    " ".repeat(gap)
                );
            }
            push(&line);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::picture;
    use super::*;

    const WITHOUT: &str = include_str!("without.txt");
    const WITH: &str = include_str!("with.txt");

    #[test]
    fn timelines_of_both_halves() {
        let plain = Style { unicode: true, colour: false };
        assert_eq!(picture(false).text(plain), WITHOUT);
        assert_eq!(picture(true).text(Style::default()), WITH);
    }

    #[test]
    fn colours_do_not_change_the_text() {
        let style = Style { unicode: true, colour: true };
        let mut coloured = picture(false).text(style);
        assert!(coloured.contains("\x1b[31m130: 50 lost\x1b[0m"), "{coloured}");
        while let Some(from) = coloured.find('\x1b') {
            let to = from + coloured[from..].find('m').unwrap();
            coloured.replace_range(from..=to, "");
        }
        assert_eq!(coloured, picture(false).text(Style { colour: false, ..style }));
    }
}
