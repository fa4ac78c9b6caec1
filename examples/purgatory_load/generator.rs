//! The generator: one thread that adds all requests.

use crate::completer::{Due, Ready};
use crate::ledger::{Ledger, Request};
use crate::options::{CompleteBy, Options};
use crate::sampler::Sampler;
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::Purgatory;
use tickwheel::{Timer, TimerEntry};

pub(crate) struct Generator {
    options: Options,
    ledger: &'static Ledger,
    purgatory: Purgatory<u32, Request>,
    completions: Timer<Due>,
    sampler: Sampler,
    keys: Vec<u32>,
    refused: u64,
}

/// What it did.
pub(crate) struct Generated {
    pub(crate) elapsed: Duration,
    /// By how much a request was added after its arrival, at most.
    pub(crate) longest_delay: Duration,
    /// Requests that the purgatory or the completions' timer refused: they have no reason to.
    pub(crate) refused: u64,
}

impl Generator {
    pub(crate) fn new(
        options: &Options,
        ledger: &'static Ledger,
        purgatory: Purgatory<u32, Request>,
        completions: Timer<Due>,
    ) -> Self {
        Generator {
            options: options.clone(),
            ledger,
            purgatory,
            completions,
            sampler: Sampler::new(options),
            keys: vec![0; options.keys as usize],
            refused: 0,
        }
    }

    pub(crate) fn run(mut self) -> Generated {
        let start = self.ledger.now();
        let mut longest_delay = 0;
        let mut arrival = start as f64;
        for id in 0..self.options.num {
            // From arrival to arrival, not from now: who is late catches up.
            arrival += self.sampler.interval();
            let arrives = arrival as u64;
            let mut now = self.ledger.now();
            if now < arrives {
                thread::sleep(Duration::from_nanos(arrives - now));
                now = self.ledger.now();
            }
            longest_delay = longest_delay.max(now.saturating_sub(arrives));
            self.add(id, now);
        }
        Generated {
            elapsed: Duration::from_nanos(self.ledger.now() - start),
            longest_delay: Duration::from_nanos(longest_delay),
            refused: self.refused,
        }
    }

    fn add(&mut self, id: u32, now: u64) {
        let latency = self.sampler.latency();
        self.sampler.keys(&mut self.keys);
        let in_time = latency < self.options.timeout_nanos();
        // As in the original the completion comes first: it may overtake what follows.
        if in_time && self.options.complete_by == CompleteBy::Trigger {
            let key = self.keys[id as usize % self.keys.len()];
            let deadline = ((now + self.options.timeout_nanos()) / 1_000_000) as u32;
            self.complete_at(now + latency, Due::Trigger(Ready { id, deadline }, key));
        }
        let request = self.ledger.request(id, now, latency);
        let timeout = self.ledger.instant(now + self.options.timeout_nanos());
        match self.purgatory.try_complete_else_watch(request, timeout, &self.keys) {
            Ok(watch) => {
                // Here it can't come first: there is no handle before.
                if in_time && self.options.complete_by == CompleteBy::Force {
                    if let Some(pending) = watch.pending() {
                        self.complete_at(now + latency, Due::Force(pending));
                    }
                }
            }
            Err(_) => self.refused += 1,
        }
    }

    fn complete_at(&mut self, nanos: u64, due: Due) {
        let entry = TimerEntry::at(self.ledger.instant(nanos), due);
        self.refused += u64::from(self.completions.add(entry).is_err());
    }
}
