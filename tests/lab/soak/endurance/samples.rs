//! What was measured while it lasted: memory, and which faults came from outside.

use crate::counting;
use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const STEP: Duration = Duration::from_millis(20);
/// Memory is looked at less often: the system walks the page tables for that.
const STEPS: u32 = 25;
/// Pages come with the highest peak so far, and new peaks become rare only after minutes.
const WARM_UP: Duration = Duration::from_secs(300);
/// Above that the process was stopped, or had no core.
const GAP: Duration = Duration::from_millis(200);

/// In bytes: what the process asked its allocator for, and what the system counts as resident.
type Sample = (f64, f64);
const MEMORY: [fn(&Sample) -> f64; 2] = [|sample| sample.0, |sample| sample.1];

#[derive(Default)]
pub(crate) struct Samples {
    memory: Vec<Sample>,
    /// How many of them were taken during the warm-up.
    warming: usize,
    lasted: Duration,
    /// The time that passed in gaps.
    pub(crate) stopped: Duration,
    /// How far the wall clock went from the monotonic one, to and fro.
    wall: Option<(f64, f64)>,
}

impl Samples {
    pub(crate) fn new() -> Self {
        Samples::default()
    }

    pub(crate) fn take_for(&mut self, time: Duration) {
        let (start, wall) = (Instant::now(), SystemTime::now());
        let (mut last, mut step) = (start, 0);
        while start.elapsed() < time {
            thread::sleep(STEP);
            let now = Instant::now();
            if now - last > GAP {
                self.stopped += now - last;
            }
            last = now;
            let ahead = seconds_since(wall) - start.elapsed().as_secs_f64();
            let (least, most) = self.wall.unwrap_or((ahead, ahead));
            self.wall = Some((least.min(ahead), most.max(ahead)));
            step += 1;
            if step % STEPS == 0 {
                self.memory.push((counting::in_use() as f64, resident()));
                self.warming += usize::from(start.elapsed() < WARM_UP);
            }
        }
        self.lasted = start.elapsed();
    }

    /// Returns whether it lasted for so long that resident memory has warmed up as well.
    pub(crate) fn is_warm(&self) -> bool {
        self.lasted >= WARM_UP
    }

    /// Returns by how many seconds the wall clock was set to and fro.
    pub(crate) fn wall_clock(&self) -> f64 {
        self.wall.map_or(0.0, |(least, most)| most - least)
    }

    /// Returns the bytes in use, and the resident ones: the medians of the two halves of the time
    /// after the warm-up. That is the first third, or five minutes if that is more and leaves at
    /// least as much. `None` if it was too short for that.
    pub(crate) fn growth(&self) -> Option<[(f64, f64); 2]> {
        let third = self.memory.len() / 3;
        if third < 3 {
            return None;
        }
        let leaves_enough = self.lasted >= 2 * WARM_UP;
        // A process that is stopped for long at the end takes few samples there.
        let warm_up = if leaves_enough { self.warming.clamp(third, 2 * third) } else { third };
        let warm = &self.memory[warm_up..];
        let (before, last) = warm.split_at(warm.len() / 2);
        Some(MEMORY.map(|of| (median(before, of), median(last, of))))
    }

    /// Returns the medians of each tenth of the time: the bytes in use, and the resident ones. What
    /// leaks grows by as much in each, what warms up by less and less.
    pub(crate) fn tenths(&self) -> [Vec<f64>; 2] {
        let size = (self.memory.len() / 10).max(1);
        let tenths = || self.memory.chunks_exact(size).take(10);
        MEMORY.map(|of| tenths().map(|tenth| median(tenth, of)).collect())
    }
}

fn median(samples: &[Sample], of: fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<_> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Negative if the wall clock was set back behind `start`.
fn seconds_since(start: SystemTime) -> f64 {
    let since = SystemTime::now().duration_since(start);
    since.map_or_else(|error| -error.duration().as_secs_f64(), |time| time.as_secs_f64())
}

/// Returns the resident bytes; zero where there is no Linux to ask.
fn resident() -> f64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0.0) * 1024.0
}

/// Returns the seconds on the clock that instants are made of, which only their `Debug` tells;
/// zero where it does not.
pub(crate) fn monotonic() -> f64 {
    let text = format!("{:?}", Instant::now());
    let seconds = text.split_once("tv_sec: ").and_then(|(_, rest)| rest.split(',').next());
    seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(0.0)
}
