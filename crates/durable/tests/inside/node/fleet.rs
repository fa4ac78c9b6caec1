//! A fleet of three nodes that crash, on a store that fails, against a ledger.

use super::faulty::{Fault, Faulty};
use super::{Rig, seconds};
use crate::durable::{Durable, DurableBuilder};
use crate::entry::{Cancelled, Due, Entry, Error, Outcome, Touched};
use crate::store::conformance::Random;
use crate::sync::{Mutex, lock};
use crate::when::{StoreTime, When};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::Timer;

const LEASE: Duration = Duration::from_secs(2);

/// What is known of a schedule, by its payload.
struct Known {
    key: String,
    /// Before when it must not fire.
    due: StoreTime,
    /// Whether it is committed for certain.
    certain: bool,
    /// Whether it may have been replaced or cancelled.
    gone: bool,
    cancelled: bool,
    /// Whether it may end with one run, whatever comes of that.
    marked: bool,
    runs: u32,
    done: u32,
}

#[derive(Default)]
struct Ledger {
    known: HashMap<u64, Known>,
    /// What runs of each key, on which node.
    running: HashMap<String, Vec<(usize, Due)>>,
}

impl Ledger {
    fn begin(&mut self, on: usize, due: &Due, now: StoreTime) {
        let number = number_of(due);
        let known = self.known.get_mut(&number).expect("it was scheduled");
        assert!(!known.cancelled, "{due:?} was cancelled for certain");
        assert!(
            now >= known.due && now >= due.at,
            "{due:?} is early: {now:?}"
        );
        known.runs += 1;
        let key = due.key.clone().expect("it has a key");
        let others = self.running.entry(key).or_default();
        // A handler that goes on though its claim has run out is beside those of other nodes only.
        let beside = others
            .iter()
            .find(|(node, other)| *node == on || !other.is_lost());
        assert!(beside.is_none(), "{due:?} runs beside {beside:?}");
        others.push((on, due.clone()));
    }

    fn end(&mut self, due: &Due) {
        let key = due.key.as_ref().expect("it has a key");
        let running = self.running.get_mut(key).expect("it runs");
        running.retain(|(_, other)| other.token != due.token);
    }
}

fn number_of(due: &Due) -> u64 {
    let payload = due.payload.clone().try_into().expect("eight bytes");
    u64::from_le_bytes(payload)
}

/// Ends a run in the ledger, also where the node is dropped.
struct Running(Arc<Mutex<Ledger>>, Due, bool);

impl Drop for Running {
    fn drop(&mut self) {
        let mut ledger = lock(&self.0);
        ledger.end(&self.1);
        if self.2 {
            let known = ledger.known.get_mut(&number_of(&self.1));
            known.expect("it was scheduled").done += 1;
        }
    }
}

struct Fleet {
    rig: Rig,
    random: Random,
    ledger: Arc<Mutex<Ledger>>,
    stores: Vec<Faulty>,
    nodes: Vec<Durable<Faulty>>,
    next: u64,
}

async fn handle(
    on: usize,
    ledger: Arc<Mutex<Ledger>>,
    timer: Timer,
    store: Faulty,
    due: Due,
) -> Outcome {
    lock(&ledger).begin(on, &due, store.memory.time());
    let mut running = Running(ledger, due.clone(), false);
    let number = number_of(&due).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if number % 3 == 0 {
        let _ = timer.sleep(Duration::from_millis(number % 6_000)).await;
    }
    if number % 5 == 0 && due.attempt < 3 {
        return Outcome::RetryAt(
            When::After(Duration::from_millis(number % 900)),
            "so".into(),
        );
    }
    running.2 = true;
    Outcome::Done
}

impl Fleet {
    async fn start(&mut self, index: usize) {
        let ledger = Arc::clone(&self.ledger);
        let timer = self.rig.timer.clone();
        let store = self.stores[index].clone();
        let handler = move |due| {
            handle(
                index,
                Arc::clone(&ledger),
                timer.clone(),
                store.clone(),
                due,
            )
        };
        let store = self.stores[index].clone();
        // A start is not repeated: it does not fail.
        let draw = lock(&store.draw).take();
        let builder = DurableBuilder::new(store).lease(LEASE).max_in_flight(8);
        let node = builder.start(&self.rig.timer, handler).await;
        self.nodes[index] = node.expect("no fault is injected");
        *lock(&self.stores[index].draw) = draw;
    }

    /// Lets calls of this node and its tasks fail, one of so many.
    fn fail(&mut self, one_of: u64) {
        for store in &self.stores {
            let random = Random::new(self.random.below(u64::MAX));
            *lock(&store.draw) = (one_of > 0).then(|| {
                Box::new(move |_: &'static str| {
                    let late = Fault::Late(Duration::from_millis(random.below(1_500)));
                    (random.below(one_of) == 0).then(|| {
                        let kinds = [Fault::Unreachable, Fault::Lost, Fault::LostAnswer, late];
                        kinds[random.below(4) as usize]
                    })
                }) as _
            });
        }
    }

    async fn act(&mut self) {
        let key = format!("{}", self.random.below(12));
        let node = self.nodes[self.random.below(3) as usize].clone();
        let now = self.rig.memory.time();
        match self.random.below(10) {
            0..6 => {
                let delay = Duration::from_millis(self.random.below(4_000));
                let number = self.next;
                self.next += 1;
                let known = Known {
                    key: key.clone(),
                    due: now.plus(delay),
                    certain: false,
                    gone: false,
                    cancelled: false,
                    marked: false,
                    runs: 0,
                    done: 0,
                };
                lock(&self.ledger).known.insert(number, known);
                let entry = Entry::keyed(&key, delay, number.to_le_bytes());
                let answer = self.answer(async move { node.schedule(entry).await }).await;
                let mut ledger = lock(&self.ledger);
                let may_be = !matches!(answer, Err(Error::Unavailable(_)));
                for (other, known) in &mut ledger.known {
                    if known.key == key && *other != number {
                        known.gone |= may_be;
                    }
                }
                let known = ledger.known.get_mut(&number).expect("it was written");
                known.certain = answer.is_ok();
            }
            6..8 => {
                let asked = key.clone();
                let answer = self.answer(async move { node.cancel(&asked).await }).await;
                let mut ledger = lock(&self.ledger);
                if let Ok(Cancelled::Cancelled(payload)) = &answer {
                    let number = u64::from_le_bytes(payload.as_slice().try_into().expect("eight"));
                    ledger
                        .known
                        .get_mut(&number)
                        .expect("it was scheduled")
                        .cancelled = true;
                }
                let may_be = !matches!(answer, Err(Error::Unavailable(_)) | Ok(Cancelled::Unknown));
                let runs = matches!(answer, Ok(Cancelled::Running));
                for known in ledger.known.values_mut().filter(|known| known.key == key) {
                    known.gone |= may_be && !runs;
                    known.marked |= runs;
                }
            }
            _ => {
                let delay = Duration::from_millis(self.random.below(2_000));
                for known in lock(&self.ledger).known.values_mut() {
                    if known.key == key {
                        known.due = known.due.min(now.plus(delay));
                    }
                }
                let answer = self
                    .answer(async move { node.touch(&key, delay).await })
                    .await;
                assert!(!matches!(answer, Ok(Touched::Moved)) || delay < seconds(2));
            }
        }
    }

    /// Waits for an answer in virtual time, with the other calls one after the other.
    async fn answer<A: Send + 'static>(
        &mut self,
        call: impl Future<Output = Result<A, Error>> + Send + 'static,
    ) -> Result<A, Error> {
        let call = tokio::spawn(call);
        while !call.is_finished() {
            self.rig.pass(Duration::from_millis(1)).await;
        }
        call.await.expect("no panic")
    }
}

#[tokio::test]
async fn nothing_is_lost_early_or_twice_at_once_whatever_fails() {
    for seed in 1..=6_u64 {
        let rig = Rig::new();
        let stores = vec![rig.store(), rig.store(), rig.store()];
        let mut fleet = Fleet {
            random: Random::new(seed),
            ledger: Arc::default(),
            nodes: Vec::new(),
            next: 0,
            stores,
            rig,
        };
        for index in 0..3 {
            let node = fleet.rig.node(&fleet.stores[index], |it| it).await;
            fleet.nodes.push(node);
            fleet.start(index).await;
        }
        for round in 0..300 {
            if round % 40 == 0 {
                let one_of = [0, 20, 6][fleet.random.below(3) as usize];
                fleet.fail(one_of);
            }
            fleet.act().await;
            if fleet.random.below(25) == 0 {
                let index = fleet.random.below(3) as usize;
                fleet.start(index).await;
            }
            let pause = fleet.random.below(400);
            fleet.rig.pass(Duration::from_millis(pause)).await;
        }
        fleet.fail(0);
        fleet.rig.pass(seconds(400)).await;
        assert!(
            fleet.rig.memory.is_empty(),
            "seed {seed}: {:?}",
            fleet.nodes
        );
        let ledger = lock(&fleet.ledger);
        for (number, known) in &ledger.known {
            let ended = known.done > 0 || (known.marked && known.runs > 0);
            let is_lost = known.certain && !known.gone && !ended;
            assert!(!is_lost, "seed {seed}: {number} of {} is lost", known.key);
        }
        let runs: u32 = ledger.known.values().map(|known| known.runs).sum();
        assert!(runs > 50, "seed {seed}: {runs} runs");
    }
}
