//! Nodes on a store in memory, in virtual time, whose handlers write down what they get.

mod alone;
mod steer;
mod subscriber;
mod together;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tickwheel::{ManualClock, Timer};
use tickwheel_durable::store::memory::{Memory, pass};
use tickwheel_durable::{Due, Durable, DurableBuilder, Entry, Missed, Outcome, Series, When};

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Time, a store, and what has fired.
pub(crate) struct Rig {
    clock: ManualClock,
    timer: Timer,
    pub(crate) store: Memory,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    fired: Mutex<Vec<String>>,
    running: AtomicUsize,
    most: AtomicUsize,
    /// What a handler has kept.
    kept: Mutex<Option<Due>>,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .clock(clock.clone())
            .build()
            .expect("it is right");
        let store = Memory::new(clock.clone());
        Rig {
            clock,
            timer,
            store,
            log: Arc::default(),
        }
    }

    /// Starts a node, and lets it look around.
    pub(crate) async fn node(
        &self,
        set: impl FnOnce(DurableBuilder<Memory>) -> DurableBuilder<Memory>,
    ) -> Durable<Memory> {
        let log = Arc::clone(&self.log);
        let timer = self.timer.clone();
        let handler = move |due: Due| {
            let log = Arc::clone(&log);
            let timer = timer.clone();
            async move { log.handle(due, &timer).await }
        };
        let builder = set(Durable::memory(self.store.clone()));
        let node = builder
            .start(&self.timer, handler)
            .await
            .expect("memory opens");
        self.pass(Duration::from_millis(100)).await;
        node
    }

    /// Lets time pass and everybody act meanwhile.
    pub(crate) async fn pass(&self, time: Duration) {
        pass(&self.clock, &self.timer, time).await;
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.store.time().into()
    }

    /// Takes what has fired so far: key, payload and attempt.
    pub(crate) fn fired(&self) -> Vec<String> {
        std::mem::take(&mut self.log.fired.lock().unwrap())
    }

    /// Returns the node of a timer that a handler has kept, if that is there.
    pub(crate) fn node_of_kept(&self) -> Option<Durable<Memory>> {
        self.log
            .kept
            .lock()
            .unwrap()
            .as_ref()
            .expect("it was kept")
            .node()
    }

    pub(crate) fn most_at_once(&self) -> usize {
        self.log.most.load(Ordering::Relaxed)
    }
}

impl Log {
    async fn handle(&self, due: Due, timer: &Timer) -> Outcome {
        if due.key.as_deref() == Some("series") {
            return self.run_series(due);
        }
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(running, Ordering::Relaxed);
        let key = due.key.as_deref().unwrap_or("-");
        let kept = due.clone();
        let payload = String::from_utf8(due.payload).unwrap();
        self.fired
            .lock()
            .unwrap()
            .push(format!("{key}={payload}#{}", due.attempt));
        tokio::task::yield_now().await;
        if key.starts_with("slow") {
            timer.sleep(seconds(5)).await.unwrap();
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
        match payload.as_str() {
            "follow" => {
                let node = kept.node::<Memory>().expect("it runs");
                let next = Entry::keyed("next", seconds(5), "x");
                node.schedule(kept.tag.iter().fold(next, Entry::tag))
                    .await
                    .unwrap();
                *self.kept.lock().unwrap() = Some(kept);
                Outcome::Done
            }
            "again" => Outcome::Again(When::After(seconds(2)), b"last".to_vec()),
            "hang" => std::future::pending().await,
            "retry" => Outcome::RetryAt(When::After(seconds(2)), "not now".to_owned()),
            "panic" => panic!("as it should"),
            "fail" => Outcome::Failed("no luck".to_owned()),
            "dead" => Outcome::Dead("no good".to_owned()),
            _ => Outcome::Done,
        }
    }

    /// Runs each ten seconds, by the policy that the payload says; writes down for when the run was
    /// planned, in seconds since the store began, or that it does nothing.
    fn run_series(&self, due: Due) -> Outcome {
        let (missed, jitter) = match due.payload.as_slice() {
            b"all" => (Missed::All, 0),
            b"skip" => (Missed::Skip, 0),
            b"jitter" => (Missed::Once, 9),
            _ => (Missed::Once, 0),
        };
        let series = Series::every(seconds(10))
            .missed(missed)
            .jitter(seconds(jitter));
        let planned = due.planned.as_micros() / 1_000_000 % 1_000_000;
        if (due.payload.as_slice(), planned) == (b"dies", 20) {
            return Outcome::Dead("no good".to_owned());
        }
        let spread = due.at.since(due.planned).as_secs();
        let what = match (series.skips(&due), jitter) {
            (true, _) => format!("-{planned}"),
            (_, 0) => format!("{planned}"),
            _ => format!("{planned}+{spread}"),
        };
        self.fired.lock().unwrap().push(what);
        series.next(due)
    }
}

/// Seen to fail: runs were missing, and leases lost, without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "a runtime of tokio's current thread")]
async fn time_passes_on_one_thread_only() {
    Rig::new().await.pass(seconds(1)).await;
}
