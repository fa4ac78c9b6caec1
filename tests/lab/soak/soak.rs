//! Soak: memory follows the timers that live, whatever came and went before.
//!
//! Each shape makes a timer, or a structure on one, do very much that is in vain, and leaves some
//! timers alive: then the bytes in use for each of these are bounded. The same again must not take
//! more. What lives on after a peak is bounded too (`peaks.rs`). An allocator counts the bytes, so
//! nothing depends on the machine.
//!
//! `TICKWHEEL_SOAK=full` takes the sizes that are written here, which is for release builds; unless
//! it is set, they are a 32nd of that.

mod counting;
#[path = "../../common/idle.rs"]
mod idle;
mod peaks;
mod timers;

pub(crate) use counting::in_use;
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// The most bytes that each live timer may take beyond what it takes in a fresh timer with the same
/// live ones. In the comments, what was measured at the full size: all bytes per live timer, and
/// how many times that is what the fresh one takes.
pub(crate) mod bounds {
    /// 79; 1.2 times; 2 references each. (Before every reference was swept in turn: 343; 5.5.)
    pub(crate) const MOMENT: usize = 30;
    /// 346; 4.4 times: a block for each bucket.
    pub(crate) const ALONE: usize = 280;
    /// 78; 1.3 times.
    pub(crate) const RANDOM: usize = 20;
    /// 76; 1.2 times.
    pub(crate) const TO_AND_FRO: usize = 20;
    /// 170; 1.7 times.
    pub(crate) const BURSTS: usize = 0;
    /// One lives; 1.00 times. (Before the delay queue gave memory back: 32 for each that had been.)
    pub(crate) const OVER: usize = 0;
    /// Nothing lives: 36,016 bytes stay. (Before records went with the last chunk: 964,816.)
    pub(crate) const POSTPONED: usize = 0;
    /// Nothing lives: 20,744 bytes stay, for the next timers.
    pub(crate) const MADE_AND_DROPPED: usize = 0;
}

/// How often each shape is repeated on what it left.
pub(crate) const REPEATS: usize = 4;

/// What may come on top, however many live: a level more, a spare block and chunk of each shard.
pub(crate) const SPARE: usize = 256 << 10;

/// What a shape was measured to take.
pub(crate) struct Measured {
    pub(crate) shape: &'static str,
    /// Per live timer.
    pub(crate) bound: usize,
    /// Besides.
    pub(crate) spare: usize,
    pub(crate) live: usize,
    /// After each repeat.
    pub(crate) bytes: Vec<usize>,
    /// References in the wheels' buckets, if they can be seen.
    pub(crate) references: usize,
    /// What a fresh timer takes for the same live ones, if there are any.
    pub(crate) fresh: usize,
}

/// Returns the size that `full` stands for.
pub(crate) fn scaled(full: usize) -> usize {
    match std::env::var("TICKWHEEL_SOAK").as_deref() {
        Ok("full") => full,
        Ok(other) => panic!("TICKWHEEL_SOAK is {other}, and neither unset nor full"),
        Err(_) => full / 32,
    }
}

impl Measured {
    fn print(&self) {
        let Measured {
            shape,
            live,
            bytes,
            references,
            fresh,
            ..
        } = self;
        let most = *bytes.iter().max().expect("it was measured");
        let per = |bytes: usize| bytes as f64 / (*live).max(1) as f64;
        let times = if *fresh > 0 {
            most as f64 / *fresh as f64
        } else {
            1.0
        };
        println!(
            "{shape:<20} {live:>8} {most:>12} {:>12.1} {:>10.1} {times:>8.2} {:>8.2}  {bytes:?}",
            per(most),
            per(*fresh),
            per(*references),
        );
    }

    fn complaint(&self) -> Option<String> {
        let Measured {
            shape,
            bound,
            spare,
            live,
            bytes,
            fresh,
            ..
        } = self;
        let most = *bytes.iter().max()?;
        let allowed = spare + fresh + bound * live;
        if most > allowed {
            return Some(format!("{shape}: {most} bytes for {live}, not {allowed}"));
        }
        // The first two tell by how much it swings. Repeating a shape may add to the directory of a
        // slab, or to a vector, in each shard; and each has one spare chunk more or less.
        let before = bytes[..2].iter().max()?;
        let last = bytes[2..].iter().max()?;
        let grown = *last > before + before / 20 + spare / 8;
        grown.then(|| format!("{shape}: grows when it is repeated: {bytes:?}"))
    }
}

#[test]
fn memory_follows_the_timers_that_live() {
    println!(
        "{:<20} {:>8} {:>12} {:>12} {:>10} {:>8} {:>8}  bytes after each repeat",
        "shape", "live", "bytes", "per live", "if fresh", "times", "refs"
    );
    let shapes: [fn() -> Measured; 9] = [
        timers::moment,
        timers::alone,
        timers::random,
        timers::to_and_fro,
        timers::bursts,
        timers::over,
        timers::postponed,
        timers::made_and_dropped,
        timers::tenants,
    ];
    let mut complaints = Vec::from_iter(timers::complaint_of_empty());
    for shape in shapes {
        let measured = shape();
        measured.print();
        complaints.extend(measured.complaint());
    }
    complaints.extend(peaks::complaints());
    assert!(complaints.is_empty(), "{complaints:#?}");
}
