//! Workers in stages, on threads: each takes an item in its check, and hands it to the next stage.
//! No stage keeps an item while somebody waits for it.

use crate::HOUR;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{Task, Timer, Worker};

const STAGES: usize = 6;
const ITEMS: u32 = 300;
const THREADS: u32 = 3;

/// Only a bug takes longer.
const HANG: Duration = Duration::from_secs(120);

struct Line {
    queues: [Mutex<VecDeque<u32>>; STAGES + 1],
    purgatory: Mutex<Option<Purgatory<usize, Stage>>>,
    is_limited: bool,
}

/// A worker, which the next one replaces when it has taken an item.
struct Stage {
    number: usize,
    line: Arc<Line>,
}

impl Line {
    fn purgatory(&self) -> Option<Purgatory<usize, Stage>> {
        self.purgatory.lock().unwrap().clone()
    }

    fn put(&self, stage: usize, item: u32) {
        self.queues[stage].lock().unwrap().push_back(item);
        let Some(purgatory) = self.purgatory().filter(|_| stage < STAGES) else {
            return;
        };
        if self.is_limited {
            purgatory.check_and_complete_up_to(&stage, 1);
        } else {
            purgatory.check_and_complete(&stage);
        }
    }

    fn watch(self: &Arc<Self>, number: usize) {
        let stage = Stage {
            number,
            line: Arc::clone(self),
        };
        if let Some(purgatory) = self.purgatory() {
            let _ = purgatory
                .try_complete_else_watch(stage, HOUR, &[number])
                .unwrap();
        }
    }
}

impl DelayedOperation for Stage {
    fn try_complete(&mut self) -> bool {
        let item = self.line.queues[self.number].lock().unwrap().pop_front();
        item.into_iter()
            .for_each(|item| self.line.put(self.number + 1, item));
        item.is_some()
    }

    fn on_complete(&mut self) {
        self.line.watch(self.number);
    }
}

#[test]
fn no_trigger_of_a_check_that_takes_an_item_is_lost() {
    for (is_limited, workers, on_worker) in [
        (false, 1, false),
        (true, 1, false),
        (true, 3, true),
        (false, 2, true),
    ] {
        let builder = Timer::builder();
        let timer = if on_worker {
            builder
                .executor(Worker::unbounded("stages", Task::run).unwrap())
                .start()
        } else {
            builder.start()
        };
        let purgatory = Mutex::new(Some(Purgatory::new(&timer.unwrap())));
        let line = Arc::new(Line {
            queues: Default::default(),
            purgatory,
            is_limited,
        });
        (0..STAGES * workers).for_each(|worker| line.watch(worker % STAGES));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let line = &line;
                // Some are put in the middle.
                let stage = move |item| (item + thread) as usize % 3;
                scope.spawn(move || (0..ITEMS).for_each(|item| line.put(stage(item), item)));
            }
        });
        let start = Instant::now();
        let all = (ITEMS * THREADS) as usize;
        let left = || {
            line.queues
                .each_ref()
                .map(|queue| queue.lock().unwrap().len())
        };
        while left()[STAGES] < all {
            assert!(start.elapsed() < HANG, "a trigger was lost: {:?}", left());
            thread::sleep(Duration::from_millis(1));
        }
        let purgatory = line.purgatory.lock().unwrap().take().unwrap();
        assert_eq!(purgatory.stats().panicked, 0);
        assert_eq!(purgatory.shutdown().len(), STAGES * workers);
    }
}
