//! The timeline as an SVG file: readable on light and dark backgrounds, without scripts or fonts of its own.

use std::fmt::Write as _;

use super::{Cell, Picture, RESOURCE, Row, Tone, Track};
use crate::event::Actor;

const ROW: usize = 22;
/// The approximate width of a character in browsers' default fonts.
const CHAR: usize = 8;
const TIME: usize = 76;
const MARGIN: usize = 24;

// No CSS variables: not every SVG viewer supports them.
const STYLE: &str = "
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .head { font-weight: 600 }
  .time { fill: #6e7781; text-anchor: end }
  .good { fill: #1a7f37; font-weight: 600 }
  .bad { fill: #cf222e; font-weight: 600 }
  .back { fill: #ffffff }
  .works { fill: #6e7781 }
  .waits { fill: #afb8c1 }
  .frozen { fill: #8ecae6 }
  .a { fill: #8250df }
  .b { fill: #0969da }
  .knot { stroke: #ffffff; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .time { fill: #8d96a0 }
    .good { fill: #3fb950 }
    .bad { fill: #f85149 }
    .back { fill: #0d1117 }
    .works { fill: #8d96a0 }
    .waits { fill: #484f58 }
    .frozen { fill: #3d7a96 }
    .a { fill: #ab7df8 }
    .b { fill: #4493f8 }
    .knot { stroke: #0d1117 }
  }
";

/// Draws several timelines below each other.
#[must_use]
pub fn svg(title: &str, description: &str, pictures: &[Picture]) -> String {
    let (mut body, mut top, mut wide) = (String::new(), MARGIN, 0);
    for picture in pictures {
        let (width, bottom) = picture.draw(&mut body, top);
        wide = wide.max(width);
        top = bottom + MARGIN;
    }
    let (title, description) = (escaped(title), escaped(description));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {top}\" width=\"{wide}\" height=\"{top}\" \
         role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">{title}</title>\n\
         <desc id=\"desc\">{description}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"{wide}\" height=\"{top}\"/>\n{body}</svg>\n"
    )
}

impl Picture {
    /// Draws from `top` on. Returns the right and the bottom edge.
    fn draw(&self, body: &mut String, top: usize) -> (usize, usize) {
        let mut lanes = Vec::new();
        let mut x = MARGIN + TIME;
        for lane in 0..self.lanes.len() {
            lanes.push(x);
            x += self.width(lane) * CHAR + 44;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(
            body,
            "<text class=\"title\" x=\"{MARGIN}\" y=\"{}\">{}</text>",
            top + 14,
            escaped(&self.title)
        );
        let head = top + 44;
        for (x, name) in lanes.iter().zip(&self.lanes) {
            let _ = writeln!(body, "<text class=\"head\" x=\"{x}\" y=\"{head}\">{name}</text>");
        }
        let first = head + 10;
        for (number, row) in self.rows.iter().enumerate() {
            draw_row(body, row, &lanes, first + number * ROW);
        }
        (x, first + self.rows.len() * ROW)
    }
}

fn draw_row(body: &mut String, row: &Row, lanes: &[usize], y: usize) {
    let base = y + ROW / 2 + 5;
    if let Some(at) = row.at {
        let (x, at) = (MARGIN + TIME - 20, at.as_secs_f64());
        let _ = writeln!(body, "<text class=\"time\" x=\"{x}\" y=\"{base}\">{at:.2} s</text>");
    }
    for (lane, (cell, x)) in row.cells.iter().zip(lanes).enumerate() {
        let text = if lane == RESOURCE {
            *x
        } else {
            draw_track(body, cell, *x, y);
            x + 18
        };
        if cell.text.is_empty() {
            continue;
        }
        let class = match cell.tone {
            Tone::Plain => "",
            Tone::Good => " class=\"good\"",
            Tone::Bad => " class=\"bad\"",
        };
        let words = escaped(&cell.text);
        let _ = writeln!(body, "<text{class} x=\"{text}\" y=\"{base}\">{words}</text>");
    }
}

fn draw_track(body: &mut String, cell: &Cell, x: usize, y: usize) {
    let (class, wide) = match cell.track {
        Track::Nothing => ("", 0),
        Track::Waits => ("waits", 2),
        Track::Works => ("works", 4),
        Track::Frozen => ("frozen", 10),
        Track::Held(Actor::A) => ("a", 10),
        Track::Held(Actor::B) => ("b", 10),
    };
    let middle = x + 5;
    if wide > 0 {
        // From the dot of this row down to that of the next one.
        let from = y + ROW / 2;
        let x = middle - wide / 2;
        let _ = writeln!(
            body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{from}\" width=\"{wide}\" height=\"{ROW}\"/>"
        );
    }
    if !cell.text.is_empty() {
        let class = if class.is_empty() { "works" } else { class };
        let y = y + ROW / 2;
        let _ =
            writeln!(body, "<circle class=\"knot {class}\" cx=\"{middle}\" cy=\"{y}\" r=\"6\"/>");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::picture;
    use super::*;

    #[test]
    fn svg_is_complete_and_has_no_scripts() {
        let drawn = svg("A <pause>", "two & two", &[picture(false), picture(true)]);
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");
        assert!(drawn.contains("<title id=\"title\">A &lt;pause&gt;</title>"), "{drawn}");
        assert!(drawn.contains("two &amp; two") && !drawn.contains("<script"), "{drawn}");
        assert!(drawn.contains("class=\"bad\"") && drawn.contains("130: 50 lost"), "{drawn}");
        assert!(drawn.contains("class=\"good\"") && drawn.contains("130? refused"), "{drawn}");
        assert!(drawn.contains("prefers-color-scheme: dark"), "{drawn}");
        for (open, close) in [("<text", "</text>"), ("<style", "</style>"), ("<desc", "</desc>")] {
            assert_eq!(drawn.matches(open).count(), drawn.matches(close).count(), "{open}");
        }
    }

    #[test]
    fn same_events_give_the_same_svg() {
        let drawn = || svg("x", "y", &[picture(true)]);
        assert_eq!(drawn(), drawn());
    }

    #[test]
    fn every_timed_row_is_drawn() {
        let pictured = picture(false);
        let drawn = svg("x", "y", std::slice::from_ref(&pictured));
        let times = pictured.rows.iter().filter(|row| row.at.is_some()).count();
        assert_eq!(drawn.matches("class=\"time\"").count(), times);
    }
}
