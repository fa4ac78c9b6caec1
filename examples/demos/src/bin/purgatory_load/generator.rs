//! The generator: one thread that adds all requests.

use crate::completer::{Due, Queue, Ready};
use crate::ledger::{Ledger, Request};
use crate::options::{CompleteBy, Options};
use crate::sampler::{Keys, Sample, samples};
use std::mem;
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::Purgatory;

pub(crate) struct Generator {
    options: Options,
    ledger: &'static Ledger,
    purgatory: Purgatory<u32, Request>,
    queue: Queue,
    samples: Box<[Sample]>,
    keys: Keys,
    refused: u64,
}

/// What it did.
pub(crate) struct Generated {
    pub(crate) elapsed: Duration,
    /// By how much a request was added after its arrival, at most; as of the look before it.
    pub(crate) longest_delay: Duration,
    /// Requests that the purgatory refused: it has no reason to.
    pub(crate) refused: u64,
}

impl Generator {
    pub(crate) fn new(
        options: &Options,
        ledger: &'static Ledger,
        purgatory: Purgatory<u32, Request>,
        queue: Queue,
    ) -> Self {
        Generator {
            options: options.clone(),
            ledger,
            purgatory,
            queue,
            samples: samples(options),
            keys: Keys::new(options),
            refused: 0,
        }
    }

    pub(crate) fn run(mut self) -> Generated {
        let clock = self.ledger.clock;
        let start = clock.look();
        let mut longest_delay = 0;
        let mut arrival = start as f64;
        let samples = mem::take(&mut self.samples);
        for (id, sample) in (0..self.options.num).zip(samples.iter().cycle()) {
            // From arrival to arrival, not from now: who is late catches up.
            arrival += sample.interval;
            let arrives = arrival as u64;
            let mut now = clock.step(arrives);
            if now < arrives {
                thread::sleep(Duration::from_nanos(arrives - now));
                now = clock.look();
            }
            longest_delay = longest_delay.max(now.saturating_sub(arrives));
            self.add(id, now, sample.latency);
        }
        Generated {
            elapsed: Duration::from_nanos(clock.look() - start),
            longest_delay: Duration::from_nanos(longest_delay),
            refused: self.refused,
        }
    }

    fn add(&mut self, id: u32, now: u64, latency: u64) {
        let keys = self.keys.next();
        let timeout = self.options.timeout_nanos();
        let complete_by = (latency < timeout).then_some(self.options.complete_by);
        // As in the original the completion comes first: it may overtake what follows.
        if complete_by == Some(CompleteBy::Trigger) {
            let key = keys[id as usize % keys.len()];
            let deadline = ((now + timeout) / 1_000_000) as u32;
            self.queue.add(now + latency, Due::Trigger(Ready { id, deadline }, key));
        }
        let request = self.ledger.request(id, now, latency);
        let deadline = self.ledger.clock.instant(now + timeout);
        match self.purgatory.try_complete_else_watch(request, deadline, keys) {
            Ok(watch) => {
                // Here it can't come first: there is no handle before.
                if complete_by == Some(CompleteBy::Force) {
                    if let Some(pending) = watch.pending() {
                        self.queue.add(now + latency, Due::Force(pending));
                    }
                }
            }
            Err(_) => self.refused += 1,
        }
    }
}
