//! Draws how late consumers get what was produced, from a purgatory and from a pool of threads of
//! which each serves one long poll at a time: it looks, sleeps for 10 ms, and looks again. All of
//! it is in virtual time, with a record a second for each consumer, so the picture is
//! the same each time.

#[path = "../tests/broker/world.rs"]
#[allow(dead_code, unused_imports, reason = "the tests use more of it")]
mod world;

use charts::{Chart, Line, Scale, draw};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use world::*;

const THREADS: usize = 16;
const SLEEP: Duration = Duration::from_millis(10);
/// As `world::fetch` asks for.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// For how many milliseconds each number of consumers is looked at.
const STEPS: usize = 60_000;
/// How often something is produced for each consumer, in milliseconds, on average.
const PERIOD: usize = 1024;

/// Consumers, each with a topic of its own.
struct Scene {
    world: World,
    /// When each topic's records were sent, how many its consumer has, and how late it was.
    sent: Vec<Vec<Instant>>,
    taken: Vec<usize>,
    late: Vec<Duration>,
    random: u64,
}

impl Scene {
    fn new(consumers: usize) -> Self {
        let world = World::new();
        (0..consumers).for_each(|consumer| drop(world.create(&topic(consumer))));
        let (sent, taken) = (vec![Vec::new(); consumers], vec![0; consumers]);
        Scene { world, sent, taken, late: Vec::new(), random: 0 }
    }

    /// Lets a millisecond pass, and now and then produces.
    fn step(&mut self, number: usize) {
        let consumers = self.sent.len();
        let every = PERIOD / consumers;
        if number % every == 0 {
            // Any of them, by a generator of random numbers with a fixed seed.
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let consumer = (self.random >> 33) as usize % consumers;
            self.sent[consumer].push(self.world.timer.now());
            let asked = self.world.produce(&topic(consumer), 1, batch(b"x"));
            assert_eq!(asked.produced().0, 0);
        }
        self.world.advance(MS);
    }

    fn ask(&self, consumer: usize, min_bytes: i32) -> Asked {
        self.world.ask(11, fetch(&topic(consumer), self.taken[consumer] as i64, min_bytes))
    }

    /// Returns whether there was something in an answer.
    fn take(&mut self, consumer: usize, answer: Asked) -> bool {
        let response = answered!(Fetch, answer.answer());
        let end = response.responses[0].partitions[0].high_watermark as usize;
        let new = &self.sent[consumer][self.taken[consumer]..end];
        self.late.extend(new.iter().map(|sent| self.world.timer.now() - *sent));
        let is_new = !new.is_empty();
        self.taken[consumer] = end;
        is_new
    }

    /// Returns the lateness that one in a hundred exceeds, in milliseconds.
    fn percentile(mut self) -> f64 {
        self.late.sort_unstable();
        self.late[self.late.len() * 99 / 100].as_secs_f64() * 1000.0
    }
}

fn topic(consumer: usize) -> String {
    format!("topic-{consumer}")
}

fn purgatory(consumers: usize) -> f64 {
    let mut scene = Scene::new(consumers);
    let mut waiting: Vec<Asked> = (0..consumers).map(|consumer| scene.ask(consumer, 1)).collect();
    for number in 0..STEPS {
        scene.step(number);
        for (consumer, asked) in waiting.iter_mut().enumerate() {
            if asked.is_answered() {
                let answer = std::mem::replace(asked, scene.ask(consumer, 0));
                scene.take(consumer, answer);
                *asked = scene.ask(consumer, 1);
            }
        }
    }
    scene.percentile()
}

fn sleeping_pool(consumers: usize) -> f64 {
    let mut scene = Scene::new(consumers);
    let mut queue: VecDeque<usize> = (0..consumers).collect();
    // Each thread's consumer, when it came, and when the thread looks next.
    let mut threads = vec![None; THREADS];
    for number in 0..STEPS {
        scene.step(number);
        let now = scene.world.timer.now();
        for thread in &mut threads {
            let new = || queue.pop_front().map(|consumer| (consumer, now, now));
            let Some((consumer, since, next_look)) = thread.or_else(new) else { continue };
            *thread = Some((consumer, since, next_look));
            if next_look > now {
                continue;
            }
            let looked = scene.ask(consumer, 0);
            if scene.take(consumer, looked) || now - since >= MAX_WAIT {
                queue.push_back(consumer);
                *thread = None;
            } else {
                *thread = Some((consumer, since, now + SLEEP));
            }
        }
    }
    scene.percentile()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("picture FILE.svg")?;
    let line = |name: &str, percentile: fn(usize) -> f64| {
        let loads = [0.25, 0.5, 1.0, 2.0, 4.0];
        let points = loads.map(|load| (load, percentile((load * THREADS as f64) as usize)));
        println!("{name}: {points:?}");
        Line { name: Some(name.to_owned()), points: points.to_vec() }
    };
    let chart = Chart {
        title: "from a record to its consumer, p99 in ms",
        scale: Scale::Log { least: 1.0 },
        lines: vec![
            line("16 threads that look and sleep", sleeping_pool),
            line("purgatory", purgatory),
        ],
    };
    draw(Path::new(&path), &[chart])?;
    Ok(())
}
