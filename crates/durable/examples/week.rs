//! A guide: a handler is tested for a week, in seconds, on three nodes that fail by a seed.
//!
//! All lies in one thread: a store in memory, nodes that share its timers, and a clock that leaps
//! from one moment at which something is due to the next. The seed decides what fails and when:
//! nodes crash, calls to the store fail or lose their answers, and so does what the handler calls.
//! So a test shows what the handler does then, and a seed that fails is tried again. (Which node
//! has which timer is drawn anew each time.)

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tickwheel::{ManualClock, Timer};
use tickwheel_durable::store::memory::{Fault, Memory, pass};
use tickwheel_durable::{Due, Durable, Entry, Outcome, Series};

const DAY: Duration = Duration::from_secs(86_400);
const CUSTOMERS: u32 = 20;

/// The mails that were sent: to whom, for which day, and when.
type Sent = BTreeMap<(String, SystemTime), SystemTime>;

/// A mail server that is down at times.
struct Mail {
    clock: ManualClock,
    store: Memory,
    sent: Mutex<Sent>,
}

impl Mail {
    fn send(&self, customer: &str, day: SystemTime) -> Result<(), String> {
        if self.clock.random() % 4 == 0 {
            return Err("the mail server is down".to_owned());
        }
        let mut sent = self.sent.lock().expect("nobody panics under it");
        // At least once: a second one for the same day is told by its name.
        sent.entry((customer.to_owned(), day))
            .or_insert(self.store.now().into());
        Ok(())
    }
}

/// What is tested: a mail each day.
async fn remind(due: Due, mail: Arc<Mail>) -> Outcome {
    let customer = due.key.as_deref().unwrap_or_default();
    match mail.send(customer, due.planned.into()) {
        Ok(()) => Series::every(DAY).next(due),
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Lets a fleet live through a week, and returns what was sent, how late, and how many crashes
/// there were.
async fn week(seed: u64) -> Result<(usize, Duration, u32), Box<dyn Error>> {
    let clock = ManualClock::seeded(seed);
    let timer = Timer::builder().clock(clock.clone()).build()?;
    let store = Memory::new(64, clock.clone());
    let (sent, start) = (Mutex::default(), SystemTime::from(store.now()));
    let mail = Arc::new(Mail {
        clock: clock.clone(),
        store: store.clone(),
        sent,
    });
    let node = || {
        let mail = Arc::clone(&mail);
        Durable::memory(store.clone()).start(&timer, move |due| remind(due, Arc::clone(&mail)))
    };
    let mut fleet = [node().await?, node().await?, node().await?];
    let first = |n: u32| start + DAY / 2 + Duration::from_secs(2) * n;
    for n in 0..CUSTOMERS {
        let entry = Entry::keyed(format!("customer {n}"), first(n), "");
        fleet[0].schedule(entry).await?;
    }
    let mut crashes = 0;
    while SystemTime::from(store.now()) < start + 7 * DAY {
        for operation in ["claim", "acknowledge", "load", "hints", "renew", "survey"] {
            match clock.random() % 8 {
                0 => store.inject(operation, Fault::Refuse),
                1 => store.inject(operation, Fault::LoseAnswer),
                _ => {}
            }
        }
        if clock.random() % 16 == 0 {
            let crashed = clock.random() as usize % fleet.len();
            // The former one is dropped, with all that it was about to do.
            fleet[crashed] = loop {
                if let Ok(node) = node().await {
                    break node; // Its first call may fail as well.
                }
            };
            crashes += 1;
        }
        pass(&clock, &timer, Duration::from_secs(clock.random() % 600)).await;
    }
    let sent = mail.sent.lock().expect("nobody panics under it");
    let mut latest = Duration::ZERO;
    for n in 0..CUSTOMERS {
        for day in (0..7).map(|day| first(n) + DAY * day) {
            let at = sent.get(&(format!("customer {n}"), day));
            let at = at.ok_or_else(|| format!("customer {n} has no mail for {day:?}"))?;
            latest = latest.max(at.duration_since(day)?); // An error if it is early.
        }
    }
    Ok((sent.len(), latest, crashes))
}

fn main() -> Result<(), Box<dyn Error>> {
    for seed in 1..=3 {
        // In a test of your own: `#[tokio::test]`, whose runtime is the same.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let (sent, latest, crashes) = runtime
            .block_on(week(seed))
            .map_err(|error| format!("seed {seed}: {error}"))?;
        println!("seed {seed}: {sent} mails in a week, {crashes} crashes, {latest:?} late at most");
        assert_eq!(sent, 7 * CUSTOMERS as usize);
        assert!(latest < Duration::from_secs(120));
    }
    Ok(())
}
