//! The timeline of a lab: time runs down, with a lane for each worker, for the lock and for the resource.
//!
//! The layout depends only on the events, and [`text`] and [`svg`] draw the same layout. A row is an event, or time that
//! passes.

pub mod file;
pub mod svg;
pub mod text;

use std::time::Duration;

use crate::event::{Action, Actor, Event};

/// The most rows for time in which nothing happens.
const LONGEST_GAP: u32 = 4;

/// The layout of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub(crate) title: String,
    pub(crate) lanes: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
}

/// An event, or time that passes.
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

/// What a lane shows from this row down to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Track {
    #[default]
    Nothing,
    Waits,
    Works,
    Frozen,
    Held(Actor),
}

/// How to colour a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
}

const LOCK: usize = 1;
const RESOURCE: usize = 3;

const fn lane(who: Actor) -> usize {
    match who {
        Actor::A => 0,
        Actor::B => 2,
    }
}

impl Picture {
    /// Lays out `events`, which are in order. `start` is the first value of the resource, if there is one; `ttl` gives the
    /// scale of the gaps.
    #[must_use]
    pub fn of(title: &str, start: Option<i64>, events: &[Event], ttl: Duration) -> Self {
        let mut lanes = vec!["A", "lock", "B"];
        if start.is_some() {
            lanes.push("balance");
        }
        let mut layout =
            Layout { tracks: vec![Track::Nothing; lanes.len()], value: start, read: [None; 2] };
        let mut rows: Vec<Row> = Vec::new();
        let mut before: Option<Duration> = None;
        for event in events {
            if let Some(before) = before {
                let unit = (ttl / 4).max(Duration::from_millis(1));
                let gap = event.at.saturating_sub(before).as_nanos() / unit.as_nanos();
                let gap = u32::try_from(gap).unwrap_or(u32::MAX).min(LONGEST_GAP);
                rows.extend((0..gap).map(|_| layout.row(None)));
            }
            let mut row = layout.add(event);
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

    /// The number of characters of the widest text of a lane, its name included.
    fn width(&self, lane: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(lane));
        let texts = cells.map(|cell| cell.text.chars().count());
        texts.max().unwrap_or(0).max(self.lanes[lane].chars().count())
    }
}

/// The state of the lanes while events are laid out.
struct Layout {
    tracks: Vec<Track>,
    value: Option<i64>,
    read: [Option<i64>; 2],
}

impl Layout {
    fn row(&self, at: Option<Duration>) -> Row {
        let cell = |track: &Track| Cell { track: *track, ..Cell::default() };
        Row { at, cells: self.tracks.iter().map(cell).collect() }
    }

    fn add(&mut self, event: &Event) -> Row {
        let (who, own) = (event.who, lane(event.who));
        let before = self.tracks[own];
        let mut notes: Vec<(usize, String, Tone)> = Vec::new();
        let mut note = |lane: usize, text: String, tone| notes.push((lane, text, tone));
        // The result is for the worker's own lane; the other lanes get notes.
        let (track, text, tone) = match &event.what {
            Action::Asked => (Track::Waits, "asks".into(), Tone::Plain),
            Action::Granted { token } => {
                self.tracks[LOCK] = Track::Held(who);
                note(LOCK, format!("{who}, token {token}"), Tone::Plain);
                (Track::Works, "granted".into(), Tone::Plain)
            }
            Action::Read { value } => {
                self.read[own / 2] = Some(*value);
                (before, format!("reads {value}"), Tone::Plain)
            }
            Action::Frozen => (Track::Frozen, "frozen".into(), Tone::Bad),
            Action::Killed => (Track::Nothing, "killed".into(), Tone::Bad),
            Action::LeaseEnded { session_continues: false } => {
                self.free_lock(who);
                note(LOCK, format!("{who}'s lease ends"), Tone::Plain);
                (before, String::new(), Tone::Plain)
            }
            Action::LeaseEnded { session_continues: true } => {
                note(LOCK, format!("{who}'s lease ends, but not its session"), Tone::Plain);
                (before, String::new(), Tone::Plain)
            }
            Action::Woken => (Track::Works, "wakes".into(), Tone::Plain),
            Action::Lost { .. } => (before, "guard is lost".into(), Tone::Plain),
            Action::Wrote { value } => {
                // The difference between the actual value and the one that the writer had read.
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
            Action::Refused { value, .. } => {
                let there = self.value.map_or_else(String::new, |value| format!("{value} stays"));
                note(RESOURCE, there, Tone::Good);
                (before, format!("{value}? refused"), Tone::Good)
            }
            Action::Released => {
                self.free_lock(who);
                (Track::Nothing, "releases".into(), Tone::Plain)
            }
            Action::NotHeld { .. } => (Track::Nothing, "had lost it".into(), Tone::Plain),
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

    fn free_lock(&mut self, who: Actor) {
        if self.tracks[LOCK] == Track::Held(who) {
            self.tracks[LOCK] = Track::Nothing;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The events of the pause lab, without the fence or with it.
    pub(crate) fn events_of_pause(fence: bool) -> Vec<Event> {
        let event = |millis, who, what| Event { at: Duration::from_millis(millis), who, what };
        let mut events = vec![
            event(0, Actor::A, Action::Asked),
            event(10, Actor::A, Action::Granted { token: 33 }),
            event(20, Actor::A, Action::Read { value: 100 }),
            event(25, Actor::B, Action::Asked),
            event(30, Actor::A, Action::Frozen),
            event(1990, Actor::A, Action::LeaseEnded { session_continues: false }),
            event(2010, Actor::B, Action::Granted { token: 34 }),
            event(2020, Actor::B, Action::Read { value: 100 }),
            event(6020, Actor::B, Action::Wrote { value: 150 }),
            event(6030, Actor::B, Action::Released),
            event(6040, Actor::A, Action::Woken),
        ];
        events.push(if fence {
            event(6050, Actor::A, Action::Refused { value: 130, why: "stale".into() })
        } else {
            event(6050, Actor::A, Action::Wrote { value: 130 })
        });
        events.push(event(6051, Actor::A, Action::Lost { cause: "its lease ran out".into() }));
        events.push(event(6060, Actor::A, Action::NotHeld { why: "lost".into() }));
        events
    }

    pub(crate) fn picture(fence: bool) -> Picture {
        let title = if fence { "With the fence" } else { "Without the fence" };
        Picture::of(title, Some(100), &events_of_pause(fence), Duration::from_secs(2))
    }

    #[test]
    fn rows_of_a_gap_depend_on_its_length_up_to_a_maximum() {
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
    fn frozen_worker_stays_frozen_until_it_wakes() {
        let rows = picture(true).rows;
        let frozen = rows.iter().filter(|row| row.cells[0].track == Track::Frozen);
        let times: Vec<_> = frozen.filter_map(|row| row.at).collect();
        assert_eq!(times.first(), Some(&Duration::from_millis(30)));
        assert_eq!(times.last(), Some(&Duration::from_millis(6030)));
    }

    #[test]
    fn only_a_lost_update_is_marked_bad() {
        let bad = |fence| {
            let rows = picture(fence).rows;
            let cells = rows.into_iter().filter_map(|row| row.cells.into_iter().nth(RESOURCE));
            cells.filter(|cell| cell.tone == Tone::Bad).map(|cell| cell.text).collect::<Vec<_>>()
        };
        assert_eq!(bad(false), ["130: 50 lost"]);
        assert!(bad(true).is_empty());
    }

    #[test]
    fn session_keeps_the_lock_after_the_lease() {
        let lock_at_the_end_of_the_lease = |session_continues| {
            let mut events = events_of_pause(true);
            events[5].what = Action::LeaseEnded { session_continues };
            let rows = Picture::of("x", None, &events, Duration::from_secs(2)).rows;
            let at = Some(Duration::from_millis(1990));
            rows.into_iter().find(|row| row.at == at).unwrap().cells[LOCK].track
        };
        assert_eq!(lock_at_the_end_of_the_lease(false), Track::Nothing);
        assert_eq!(lock_at_the_end_of_the_lease(true), Track::Held(Actor::A));
    }

    #[test]
    fn picture_without_a_resource_has_no_lane_for_it() {
        let picture = Picture::of("x", None, &events_of_pause(false), Duration::from_secs(2));
        assert_eq!(picture.lanes, ["A", "lock", "B"]);
        assert!(picture.rows.iter().all(|row| row.cells.len() == 3));
    }
}
