//! The picture: time runs down; a lane for each worker, for the lock and for the resource.
//!
//! The layout depends on the events alone, and [`text`] and [`svg`] draw the same one. A row is something that
//! happened, or time that passed: in those rows the tracks run on.

pub mod file;
pub mod svg;
pub mod text;

use std::time::Duration;

use crate::event::{Event, What, Who};

/// The most rows for time in which nothing happens.
const LONGEST_GAP: u32 = 4;

/// A picture, laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub(crate) title: String,
    pub(crate) lanes: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
}

/// A moment, or time that passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) at: Option<Duration>,
    pub(crate) cells: Vec<Cell>,
}

/// A lane's part of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) track: Track,
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

/// How a lane goes on below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Track {
    #[default]
    Nothing,
    Waits,
    Works,
    Frozen,
    Held(Who),
}

/// What to think of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
}

const LOCK: usize = 1;
const RESOURCE: usize = 3;

const fn lane(who: Who) -> usize {
    match who {
        Who::A => 0,
        Who::B => 2,
    }
}

impl Picture {
    /// Lays out `events`, which stand in order. `start` is what the resource holds at first, if there is one; `ttl`
    /// gives the scale of the gaps.
    #[must_use]
    pub fn of(title: &str, start: Option<i64>, events: &[Event], ttl: Duration) -> Self {
        let mut lanes = vec!["A", "lock", "B"];
        if start.is_some() {
            lanes.push("balance");
        }
        let mut pen =
            Pen { tracks: vec![Track::Nothing; lanes.len()], value: start, read: [None; 2] };
        let mut rows: Vec<Row> = Vec::new();
        let mut before: Option<Duration> = None;
        for event in events {
            if let Some(before) = before {
                let unit = (ttl / 4).max(Duration::from_millis(1));
                let gap = event.at.saturating_sub(before).as_nanos() / unit.as_nanos();
                let gap = u32::try_from(gap).unwrap_or(u32::MAX).min(LONGEST_GAP);
                rows.extend((0..gap).map(|_| pen.row(None)));
            }
            let mut row = pen.happens(event);
            if before.is_none()
                && let (Some(start), Some(cell)) = (start, row.cells.get_mut(RESOURCE))
                && cell.text.is_empty()
            {
                cell.text = start.to_string();
            }
            rows.push(row);
            before = Some(event.at);
        }
        Self { title: title.to_owned(), lanes, rows }
    }

    /// How many characters the widest text of a lane has, its name included.
    fn width(&self, lane: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(lane));
        let texts = cells.map(|cell| cell.text.chars().count());
        texts.max().unwrap_or(0).max(self.lanes[lane].chars().count())
    }
}

/// Where the lanes stand while the picture is laid out.
struct Pen {
    tracks: Vec<Track>,
    value: Option<i64>,
    read: [Option<i64>; 2],
}

impl Pen {
    fn row(&self, at: Option<Duration>) -> Row {
        let cell = |track: &Track| Cell { track: *track, ..Cell::default() };
        Row { at, cells: self.tracks.iter().map(cell).collect() }
    }

    fn happens(&mut self, event: &Event) -> Row {
        let (who, own) = (event.who, lane(event.who));
        let before = self.tracks[own];
        let mut notes: Vec<(usize, String, Tone)> = Vec::new();
        let mut note = |lane: usize, text: String, tone| notes.push((lane, text, tone));
        // What becomes of its own lane; the others are noted on the way.
        let (track, text, tone) = match &event.what {
            What::Asked => (Track::Waits, "asks".into(), Tone::Plain),
            What::Granted { token } => {
                self.tracks[LOCK] = Track::Held(who);
                note(LOCK, format!("{who}, token {token}"), Tone::Plain);
                (Track::Works, "granted".into(), Tone::Plain)
            }
            What::Read { value } => {
                self.read[own / 2] = Some(*value);
                (before, format!("reads {value}"), Tone::Plain)
            }
            What::Frozen => (Track::Frozen, "frozen".into(), Tone::Bad),
            What::Killed => (Track::Nothing, "killed".into(), Tone::Bad),
            What::LeaseOver { session_goes_on: false } => {
                self.let_go(who);
                note(LOCK, format!("{who}'s lease ends"), Tone::Plain);
                (before, String::new(), Tone::Plain)
            }
            What::LeaseOver { session_goes_on: true } => {
                note(LOCK, format!("{who}'s lease ends, its session not yet"), Tone::Plain);
                (before, String::new(), Tone::Plain)
            }
            What::Woken => (Track::Works, "wakes".into(), Tone::Plain),
            What::Lost { .. } => (before, "told: lost".into(), Tone::Plain),
            What::Wrote { value } => {
                // What was there, and what the writer believed was there.
                let unseen = match (self.value, self.read[own / 2]) {
                    (Some(there), Some(believed)) => there - believed,
                    _ => 0,
                };
                self.value = Some(*value);
                let (there, tone) = match unseen {
                    0 => (value.to_string(), Tone::Plain),
                    _ => (format!("{value}: {unseen} lost"), Tone::Bad),
                };
                note(RESOURCE, there, tone);
                (before, format!("writes {value}"), tone)
            }
            What::Refused { value, .. } => {
                let there = self.value.map_or_else(String::new, |value| format!("{value} stays"));
                note(RESOURCE, there, Tone::Good);
                (before, format!("{value}? refused"), Tone::Good)
            }
            What::Released => {
                self.let_go(who);
                (Track::Nothing, "releases".into(), Tone::Plain)
            }
            What::NotHeld { .. } => (Track::Nothing, "had lost it".into(), Tone::Plain),
        };
        note(own, text, tone);
        self.tracks[own] = track;
        let mut row = self.row(Some(event.at));
        for (lane, text, tone) in notes {
            if let Some(cell) = row.cells.get_mut(lane) {
                (cell.text, cell.tone) = (text, tone);
            }
        }
        row
    }

    fn let_go(&mut self, who: Who) {
        if self.tracks[LOCK] == Track::Held(who) {
            self.tracks[LOCK] = Track::Nothing;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The story as it goes without the fence, or with it.
    pub(crate) fn story(fence: bool) -> Vec<Event> {
        let event = |millis, who, what| Event { at: Duration::from_millis(millis), who, what };
        let mut events = vec![
            event(0, Who::A, What::Asked),
            event(10, Who::A, What::Granted { token: 33 }),
            event(20, Who::A, What::Read { value: 100 }),
            event(25, Who::B, What::Asked),
            event(30, Who::A, What::Frozen),
            event(1990, Who::A, What::LeaseOver { session_goes_on: false }),
            event(2010, Who::B, What::Granted { token: 34 }),
            event(2020, Who::B, What::Read { value: 100 }),
            event(6020, Who::B, What::Wrote { value: 150 }),
            event(6030, Who::B, What::Released),
            event(6040, Who::A, What::Woken),
        ];
        events.push(if fence {
            event(6050, Who::A, What::Refused { value: 130, why: "stale".into() })
        } else {
            event(6050, Who::A, What::Wrote { value: 130 })
        });
        events.push(event(6051, Who::A, What::Lost { cause: "its lease ran out".into() }));
        events.push(event(6060, Who::A, What::NotHeld { why: "lost".into() }));
        events
    }

    pub(crate) fn picture(fence: bool) -> Picture {
        let title = if fence { "With the fence" } else { "Without the fence" };
        Picture::of(title, Some(100), &story(fence), Duration::from_secs(2))
    }

    #[test]
    fn a_gap_has_rows_by_its_length_and_not_too_many() {
        let rows = picture(false).rows;
        let gap_before = |at: u64| {
            let at = Some(Duration::from_millis(at));
            let place = rows.iter().position(|row| row.at == at).unwrap();
            rows[..place].iter().rev().take_while(|row| row.at.is_none()).count()
        };
        assert_eq!(gap_before(30), 0);
        assert_eq!(gap_before(1990), 3);
        assert_eq!(gap_before(6020), LONGEST_GAP as usize);
    }

    #[test]
    fn a_frozen_worker_stays_frozen_until_it_is_woken() {
        let rows = picture(true).rows;
        let frozen = rows.iter().filter(|row| row.cells[0].track == Track::Frozen);
        let times: Vec<_> = frozen.filter_map(|row| row.at).collect();
        assert_eq!(times.first(), Some(&Duration::from_millis(30)));
        assert_eq!(times.last(), Some(&Duration::from_millis(6030)));
    }

    #[test]
    fn only_a_write_over_something_unseen_is_bad() {
        let bad = |fence| {
            let rows = picture(fence).rows;
            let cells = rows.into_iter().filter_map(|row| row.cells.into_iter().nth(RESOURCE));
            cells.filter(|cell| cell.tone == Tone::Bad).map(|cell| cell.text).collect::<Vec<_>>()
        };
        assert_eq!(bad(false), ["130: 50 lost"]);
        assert!(bad(true).is_empty());
    }

    #[test]
    fn a_session_keeps_the_lock_after_the_lease() {
        let lock_at_the_end_of_the_lease = |session_goes_on| {
            let mut story = story(true);
            story[5].what = What::LeaseOver { session_goes_on };
            let rows = Picture::of("x", None, &story, Duration::from_secs(2)).rows;
            let at = Some(Duration::from_millis(1990));
            rows.into_iter().find(|row| row.at == at).unwrap().cells[LOCK].track
        };
        assert_eq!(lock_at_the_end_of_the_lease(false), Track::Nothing);
        assert_eq!(lock_at_the_end_of_the_lease(true), Track::Held(Who::A));
    }

    #[test]
    fn without_a_resource_there_is_no_lane_for_it() {
        let picture = Picture::of("x", None, &story(false), Duration::from_secs(2));
        assert_eq!(picture.lanes, ["A", "lock", "B"]);
        assert!(picture.rows.iter().all(|row| row.cells.len() == 3));
    }
}
