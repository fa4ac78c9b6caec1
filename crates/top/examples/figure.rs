//! Prints the figure of the architecture's page: levels, buckets, the cascade, the delay queue.
//!
//! What it shows is read from a timer with wheels of four slots, which is driven from bucket to
//! bucket in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;
use svg::Document;
use svg::node::element::path::Data;
use svg::node::element::{
    Circle, Definitions, Group, Line, Marker, Path, Polygon, Rectangle, Text,
};
use tickwheel::{ManualClock, Timer, TimerEntry};

/// The slots of a wheel; and when the timers of the figure are due.
const SLOTS: u64 = 4;
const TICKS: [u32; 11] = [1, 2, 2, 3, 5, 6, 7, 9, 13, 14, 15];

const MS: Duration = Duration::from_millis(1);

const TICK: f64 = 52.0;
const LEFT: f64 = 118.0;
/// They are seen on a white page and on a dark one; the background is the page's.
const COLOURS: [&str; 3] = ["#2f81f7", "#2e9e4f", "#d9620f"];
const GREY: &str = "#6e7781";
/// Where the rows of the levels begin, the finest first, and the axis of the delay queue.
const ROWS: [f64; 3] = [232.0, 150.0, 68.0];
const ROW: f64 = 46.0;
const QUEUE: f64 = 376.0;

/// A bucket by its level and its first tick.
type Bucket = (usize, u64);

/// How many entries there are in the buckets that hold any.
type Buckets = BTreeMap<Bucket, usize>;

/// What becomes of the buckets of the beginning: when each expires, and where its entries go.
struct Story {
    buckets: Buckets,
    expirations: BTreeMap<Bucket, u64>,
    cascades: Vec<(Bucket, Buckets)>,
}

fn main() {
    println!("{}", draw(&tell()));
}

/// Returns the content of a timer's buckets at tick `now`.
fn buckets(timer: &Timer<()>, now: u64) -> Buckets {
    let mut buckets = Buckets::new();
    for level in timer.snapshot().levels {
        let span = span(level.level);
        for (ahead, entries) in level.slots.iter().enumerate().filter(|(_, entries)| **entries > 0)
        {
            buckets.insert((level.level, (now / span + ahead as u64) * span), *entries);
        }
    }
    buckets
}

/// Returns how many ticks a slot spans: half as many slots of the level below.
fn span(level: usize) -> u64 {
    (SLOTS / 2).pow(level as u32)
}

/// Goes from expiration to expiration, and looks what has changed.
fn tell() -> Story {
    let clock = ManualClock::new();
    let timer = Timer::builder().wheel_size(SLOTS as usize).shards(1).clock(clock.clone());
    let timer = timer.executor(|()| ()).build().expect("the options are in their ranges");
    let start = timer.now();
    for tick in TICKS {
        timer.add(TimerEntry::after(tick * MS, ())).expect("there is room");
    }
    let mut before = buckets(&timer, 0);
    let mut story =
        Story { buckets: before.clone(), expirations: BTreeMap::new(), cascades: Vec::new() };
    while let Some(next) = timer.next_expiration() {
        clock.advance_to(next);
        timer.advance_clock(Duration::ZERO);
        let now = (next - start).as_millis() as u64;
        let after = buckets(&timer, now);
        for (level, first) in story.buckets.keys().copied() {
            if !before.contains_key(&(level, first)) || after.contains_key(&(level, first)) {
                continue;
            }
            story.expirations.insert((level, first), now);
            let mut moved = after.clone();
            moved.retain(|bucket, _| {
                (first..first + span(level)).contains(&bucket.1) && !before.contains_key(bucket)
            });
            if !moved.is_empty() {
                story.cascades.push(((level, first), moved));
            }
        }
        before = after;
    }
    story
}

/// Returns where a tick begins.
fn x(tick: u64) -> f64 {
    LEFT + tick as f64 * TICK
}

fn draw(story: &Story) -> Document {
    let arrow = Marker::new()
        .set("id", "arrow")
        .set("viewBox", "0 0 10 10")
        .set("refX", 9)
        .set("refY", 5)
        .set("markerWidth", 7)
        .set("markerHeight", 7)
        .set("orient", "auto-start-reverse")
        .add(Polygon::new().set("points", "0,0 10,5 0,10").set("fill", GREY));
    let mut document = Document::new()
        .set("viewBox", (0, 0, 976, 400))
        .set("role", "img")
        .set("font-family", "sans-serif")
        .set("font-size", 14)
        .add(Definitions::new().add(arrow))
        .add(ticks());
    for level in 0..ROWS.len() {
        document = document.add(row(level));
    }
    // First the arrows: what they lead to lies above them.
    for (bucket, moved) in &story.cascades {
        document = document.add(cascade(*bucket, moved));
    }
    for (bucket, entries) in &story.buckets {
        document = document.add(filled(*bucket, *entries, false));
    }
    for (bucket, _) in &story.cascades {
        document = document.add(label(*bucket, story.expirations[bucket]));
    }
    document.add(queue(story))
}

fn text(content: &str, x: f64, y: f64) -> Text {
    Text::new(content).set("x", x).set("y", y).set("fill", GREY)
}

fn centred(content: &str, x: f64, y: f64) -> Text {
    text(content, x, y).set("text-anchor", "middle")
}

/// Draws the time: a number over each tick.
fn ticks() -> Group {
    let mut group = Group::new().add(text("tick", LEFT - 44.0, 34.0));
    for tick in 0..16 {
        group = group.add(centred(&tick.to_string(), x(tick) + TICK / 2.0, 34.0));
    }
    let now = centred("now", x(0) + TICK / 2.0, 16.0).set("font-weight", "bold");
    group.add(now)
}

/// Draws the slots of a level; those that a finer level has taken over are pale.
fn row(level: usize) -> Group {
    let (span, y) = (span(level), ROWS[level]);
    let mut group = Group::new()
        .add(text(&format!("level {level}"), 10.0, y + 20.0).set("font-weight", "bold"))
        .add(text(&slots_of(span), 10.0, y + 37.0).set("font-size", 12));
    let first = if level == 0 { 1 } else { SLOTS / 2 };
    for slot in 0..SLOTS {
        let opacity = if slot < first { 0.3 } else { 0.8 };
        let frame = outline(level, slot * span).set("stroke", GREY).set("fill", "none");
        group = group.add(frame.set("stroke-opacity", opacity));
    }
    group
}

fn slots_of(span: u64) -> String {
    if span == 1 { "4 slots of 1 tick".to_owned() } else { format!("4 slots of {span} ticks") }
}

fn outline(level: usize, first: u64) -> Rectangle {
    Rectangle::new()
        .set("x", x(first) + 2.0)
        .set("y", ROWS[level])
        .set("width", span(level) as f64 * TICK - 4.0)
        .set("height", ROW)
        .set("rx", 4)
}

/// Draws a bucket that holds entries, now or once they have been moved there.
fn filled((level, first): Bucket, entries: usize, later: bool) -> Group {
    let colour = COLOURS[level];
    let frame = outline(level, first).set("stroke", colour).set("stroke-width", 2);
    let frame = match later {
        true => frame.set("fill", "none").set("stroke-dasharray", "5 4"),
        false => frame.set("fill", colour).set("fill-opacity", 0.13),
    };
    let middle = x(first) + span(level) as f64 * TICK / 2.0;
    let y = ROWS[level] + if later || level == 0 { ROW / 2.0 } else { 17.0 }; // Above the label.
    let mut group = Group::new().add(frame);
    for place in 0..entries {
        let x = middle + (place as f64 - (entries as f64 - 1.0) / 2.0) * 18.0;
        let entry = Circle::new().set("cx", x).set("cy", y).set("r", 7);
        group = group.add(match later {
            true => entry.set("fill", "none").set("stroke", colour).set("stroke-dasharray", 3),
            false => entry.set("fill", colour),
        });
    }
    group
}

/// Draws arrows from a bucket of an overflow wheel to the finer ones that its entries are moved to.
fn cascade((level, first): Bucket, moved: &Buckets) -> Group {
    let middle = |(level, first): Bucket| x(first) + span(level) as f64 * TICK / 2.0;
    let (from, y) = (middle((level, first)), ROWS[level] + ROW);
    let mut group = Group::new();
    for (to, entries) in moved {
        let end = ROWS[to.0] - 2.0;
        let bend = (y + end) / 2.0;
        let data = Data::new().move_to((from, y)).cubic_curve_to((
            from,
            bend,
            middle(*to),
            bend,
            middle(*to),
            end,
        ));
        let path = Path::new().set("d", data).set("fill", "none").set("stroke", GREY);
        group = group.add(path.set("marker-end", "url(#arrow)")).add(filled(*to, *entries, true));
    }
    group
}

/// Returns the label that says when a bucket of an overflow wheel cascades.
fn label((level, first): Bucket, at: u64) -> Text {
    let middle = x(first) + span(level) as f64 * TICK / 2.0;
    centred(&format!("cascades at {at}"), middle, ROWS[level] + ROW - 6.0).set("font-size", 12)
}

/// Draws the expirations of the buckets, in the order in which the reaper comes to them.
fn queue(story: &Story) -> Group {
    let axis = Line::new().set("x1", LEFT).set("x2", x(16)).set("y1", QUEUE).set("y2", QUEUE);
    let mut group = Group::new()
        .add(axis.set("stroke", GREY))
        .add(text("delay queue", 10.0, QUEUE - 26.0).set("font-weight", "bold"))
        .add(text("by expiration", 10.0, QUEUE - 9.0).set("font-size", 12));
    let mut heights = BTreeMap::new();
    for (bucket, at) in &story.expirations {
        let height = heights.entry(*at).or_insert(0);
        let (level, first) = *bucket;
        let last = first + span(level) - 1;
        let name =
            if first == last { format!("{first}") } else { format!("{first}\u{2013}{last}") };
        let y = QUEUE - 4.0 - 24.0 * f64::from(*height + 1);
        let frame = Rectangle::new().set("x", x(*at) + 2.0).set("y", y).set("height", 22);
        let frame = frame.set("width", TICK - 4.0).set("rx", 4).set("fill", COLOURS[level]);
        let name = centred(&name, x(*at) + TICK / 2.0, y + 16.0).set("fill", "#ffffff");
        group = group.add(frame).add(name);
        *height += 1;
    }
    for at in heights.keys() {
        group = group.add(centred(&at.to_string(), x(*at) + TICK / 2.0, QUEUE + 16.0));
    }
    group
}
