//! The picture: the wheels as discs, in SVG.
//!
//! A ring is a level, the finest one innermost; the present is at twelve o'clock, and what is
//! further ahead lies further round, clockwise. The rings end at ten o'clock: the last sixth of the
//! circle has their names.

use crate::scale::{HOTTEST, Heat, heat};
use crate::scale::{number, short};
use std::f64::consts::TAU;
use std::time::Duration;
use svg::Document;
use svg::node::element::path::Data;
use svg::node::element::{Group, Line, Path, Rectangle, Text, Title};
use tickwheel_prometheus::{Figures, LevelFigures, TimerFigures};

/// Of words and empty rings: legible on a white page and on a dark one.
const GREY: &str = "#6e7781";
/// From cold to hot.
const COLOURS: [&str; HOTTEST] = [
    "#bbdefb", "#64b5f6", "#26a69a", "#9ccc65", "#ffee58", "#ffb300", "#f4511e", "#b71c1c",
];

/// How far round a ring goes.
const ROUND: f64 = TAU * 5.0 / 6.0;
const FIRST_RADIUS: f64 = 62.0;
const RING: f64 = 22.0;
const GAP: f64 = 3.0;
/// Room around a disc, with what is written there.
const MARGIN: f64 = 46.0;

/// Draws the wheels of all timers: for each a disc of its own levels, and if keyed timers stand on
/// it, one of theirs. Those without an entry are left out, unless all are.
pub(crate) fn wheels(figures: &Figures) -> Document {
    let mut discs: Vec<_> = figures.timers.iter().flat_map(discs).collect();
    if discs.iter().any(|disc| disc.entries > 0) {
        discs.retain(|disc| disc.entries > 0);
    }
    let width: f64 = discs.iter().map(|disc| 2.0 * disc.reach()).sum();
    let height = discs
        .iter()
        .map(|disc| 2.0 * disc.reach())
        .fold(0.0, f64::max)
        + 40.0;
    let mut x = 0.0;
    let mut document = Document::new()
        .set("viewBox", (0, 0, width.ceil(), height.ceil()))
        .set("width", width.ceil())
        .set("height", height.ceil())
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .set("fill", GREY)
        .set("role", "img")
        .add(Title::new("How many timers each slot of the wheels holds"));
    for disc in &discs {
        let at = format!(
            "translate({:.1} {:.1})",
            x + disc.reach(),
            (height - 40.0) / 2.0 + 12.0
        );
        document = document.add(disc.draw().set("transform", at));
        x += 2.0 * disc.reach();
    }
    document.add(legend(height - 18.0))
}

/// The levels of one kind of wheel of a timer.
struct Disc<'a> {
    title: String,
    levels: Vec<&'a LevelFigures>,
    entries: usize,
    most: usize,
}

/// Returns the discs to draw. A timer's own wheels have more slots than those of keyed timers,
/// whose levels are listed among its own. Wheels without an entry are left out, except the first.
fn discs(timer: &TimerFigures) -> Vec<Disc<'_>> {
    let mut sizes: Vec<_> = timer.levels.iter().map(|level| level.wheel_size).collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    sizes.dedup();
    let most = timer
        .levels
        .iter()
        .flat_map(|level| &level.slots)
        .copied()
        .max()
        .unwrap_or(0);
    let disc = |size| {
        let of_size = timer
            .levels
            .iter()
            .filter(move |level| level.wheel_size == size);
        let levels: Vec<_> = of_size
            .filter(|it| it.entries > 0 || it.level == 0)
            .collect();
        let entries: usize = levels.iter().map(|level| level.entries).sum();
        let name = &timer.name;
        let sum = number(entries as f64);
        let title = format!("{name}: {sum} in wheels of {size} slots");
        Disc {
            title,
            levels,
            entries,
            most,
        }
    };
    sizes.into_iter().map(disc).collect()
}

impl Disc<'_> {
    fn radius(&self) -> f64 {
        FIRST_RADIUS + self.levels.len() as f64 * (RING + GAP)
    }

    /// Returns half of the disc's extent.
    fn reach(&self) -> f64 {
        self.radius() + MARGIN
    }

    /// Draws the disc around the origin.
    fn draw(&self) -> Group {
        let mut group = Group::new();
        for (place, level) in self.levels.iter().enumerate() {
            let inner = FIRST_RADIUS + place as f64 * (RING + GAP);
            group = group.add(ring(level, inner, self.most));
        }
        let top = -self.radius() - 6.0;
        let bottom = -FIRST_RADIUS + 10.0;
        let hand = Line::new()
            .set("x1", 0)
            .set("x2", 0)
            .set("y1", bottom)
            .set("y2", top);
        let title = Text::new(self.title.clone())
            .set("text-anchor", "middle")
            .set("font-size", 13);
        let now = Text::new("now")
            .set("text-anchor", "middle")
            .set("y", top - 4.0);
        let arrow = Text::new("later \u{2192}").set("x", 20).set("y", top - 4.0);
        group
            .add(hand.set("stroke", GREY).set("stroke-width", 1.5))
            .add(now)
            .add(arrow)
            .add(title.set("y", self.radius() + 26.0))
    }
}

/// Draws a level: its ring, its slots that are not empty, and what a slot spans.
fn ring(level: &LevelFigures, inner: f64, most: usize) -> Group {
    let middle = inner + RING / 2.0;
    let slots = level.wheel_size as f64;
    let empty = Path::new()
        .set("d", sector(inner, inner + RING, 0.0, ROUND))
        .set("fill", GREY);
    let mut group = Group::new().add(empty.set("fill-opacity", 0.2));
    for (slot, entries) in level
        .slots
        .iter()
        .enumerate()
        .filter(|(_, entries)| **entries > 0)
    {
        let heat: Heat = heat(*entries, most);
        // Never so thin that it is not seen.
        let wide = (ROUND / slots).max(0.012);
        let from = slot as f64 / slots * ROUND;
        let slot = short(ahead(level, slot));
        let entries = number(*entries as f64);
        let title = Title::new(format!("{slot} ahead: {entries}"));
        let path = Path::new().set("d", sector(inner, inner + RING, from, from + wide));
        group = group.add(path.set("fill", COLOURS[heat - 1]).add(title));
    }
    let tick = short(Duration::from_nanos(level.tick_ns));
    let text = Text::new(format!("{tick} a slot")).set("text-anchor", "end");
    group.add(text.set("x", -6).set("y", -middle + 4.0))
}

fn ahead(level: &LevelFigures, slot: usize) -> Duration {
    Duration::from_nanos(level.tick_ns.saturating_mul(slot as u64))
}

/// Returns the outline of a sector of a ring; angles are in radians from twelve o'clock, clockwise.
fn sector(inner: f64, outer: f64, from: f64, to: f64) -> Data {
    let at = |radius: f64, angle: f64| {
        // No `-0`.
        let round = |value: f64| (value * 100.0).round() / 100.0 + 0.0;
        (round(radius * angle.sin()), round(-radius * angle.cos()))
    };
    let large = i32::from(to - from > TAU / 2.0);
    let end = at(outer, to);
    let back = at(inner, from);
    Data::new()
        .move_to(at(outer, from))
        .elliptical_arc_to((outer, outer, 0, large, 1, end.0, end.1))
        .line_to(at(inner, to))
        .elliptical_arc_to((inner, inner, 0, large, 0, back.0, back.1))
        .close()
}

fn legend(y: f64) -> Group {
    let text = |text: &str, x: f64| Text::new(text).set("x", x).set("y", y + 10.0);
    let mut group = Group::new().add(text("one entry", 12.0));
    for (place, colour) in COLOURS.iter().enumerate() {
        let x = 76.0 + place as f64 * 16.0;
        let square = Rectangle::new()
            .set("x", x)
            .set("y", y)
            .set("width", 15)
            .set("height", 12);
        group = group.add(square.set("fill", *colour));
    }
    group.add(text("the most in a slot", 76.0 + 8.0 * 16.0 + 6.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickwheel::{ManualClock, Timer, TimerEntry};
    use tickwheel_prometheus::Metrics;

    fn figures(delays_ms: &[u64]) -> Figures {
        let timer = Timer::builder()
            .name("a <timer>")
            .clock(ManualClock::new())
            .wheel_size(8);
        let timer = timer.shards(1).build().unwrap();
        for delay_ms in delays_ms {
            timer
                .add(TimerEntry::after(Duration::from_millis(*delay_ms), || ()))
                .unwrap();
        }
        let metrics = Metrics::default();
        metrics.timer(&timer);
        metrics.figures()
    }

    #[test]
    fn each_slot_that_holds_something_is_a_sector() {
        let picture = wheels(&figures(&[2, 2, 5, 20])).to_string();
        assert_eq!(picture.matches(" ahead: ").count(), 3);
        let outline = |from, to| {
            let path = Path::new().set("d", sector(FIRST_RADIUS, FIRST_RADIUS + RING, from, to));
            path.to_string().split('"').nth(1).unwrap().to_owned()
        };
        // From 90 to 135 degrees: the right, and then downwards.
        let right = outline(TAU / 4.0, TAU * 3.0 / 8.0);
        assert!(right.starts_with("M84,0 A84,84,0,0,1,59.4,59.4"), "{right}");
        // The slot that is two ahead, of eight.
        let outline = outline(ROUND / 4.0, ROUND * 3.0 / 8.0);
        assert!(picture.contains(&outline), "{outline} is not in {picture}");
        for title in ["2.0ms ahead: 2<", "5.0ms ahead: 1<", "20ms ahead: 1<"] {
            assert!(picture.contains(title), "{title}");
        }
        assert!(
            picture.contains("a &lt;timer&gt;: 4 in wheels of 8 slots"),
            "{picture}"
        );
    }

    #[test]
    fn nothing_is_a_picture_too() {
        assert!(wheels(&Figures::default()).to_string().starts_with("<svg"));
        assert_eq!(
            wheels(&figures(&[]))
                .to_string()
                .matches(" ahead: ")
                .count(),
            0
        );
    }
}
