//! A guide: a handler is tested for a day, in seconds, on three nodes that crash by a seed.
//!
//! All lies in one thread: a store in memory, nodes that share its timers, and a clock that leaps
//! from one moment at which something is due to the next. The seed decides when nodes crash, and
//! when what the handler calls fails. So a test shows what the handler does then, and a seed that
//! fails is tried again. (Which node has which timer is drawn anew each time.)

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tickwheel::{ManualClock, Timer};
use tickwheel_durable::store::memory::{Memory, pass};
use tickwheel_durable::{Due, Durable, Entry, Outcome, Series};

const HOUR: Duration = Duration::from_secs(3_600);
const CUSTOMERS: u32 = 20;

/// The mails that were sent: to whom, for which hour, and when.
type Sent = BTreeMap<(String, SystemTime), SystemTime>;

/// A mail server that is down at times.
struct Mail {
    clock: ManualClock,
    store: Memory,
    sent: Mutex<Sent>,
}

impl Mail {
    fn send(&self, customer: &str, hour: SystemTime) -> Result<(), String> {
        if self.clock.random() % 4 == 0 {
            return Err("the mail server is down".to_owned());
        }
        let mut sent = self.sent.lock().expect("nobody panics under it");
        // At least once: a second one for the same hour is told by its name.
        sent.entry((customer.to_owned(), hour))
            .or_insert(self.store.time().into());
        Ok(())
    }
}

/// What is tested: a mail each hour.
async fn remind(due: Due, mail: Arc<Mail>) -> Outcome {
    let customer = due.key.as_deref().unwrap_or_default();
    match mail.send(customer, due.planned.into()) {
        Ok(()) => Series::every(HOUR).next(due),
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Lets a fleet live through a day, and returns what was sent, how late, and how many crashes
/// there were.
async fn day(seed: u64) -> Result<(usize, Duration, u32), Box<dyn Error>> {
    let clock = ManualClock::seeded(seed);
    let timer = Timer::builder().clock(clock.clone()).build()?;
    let store = Memory::new(clock.clone());
    let sent = Mutex::default();
    let start = SystemTime::from(store.time());
    let mail = Arc::new(Mail {
        clock: clock.clone(),
        store: store.clone(),
        sent,
    });
    let node = || {
        let mail = Arc::clone(&mail);
        // A node wakes up eight times in each lease: with a long one the day is over sooner.
        let node = Durable::memory(store.clone()).lease(Duration::from_secs(60));
        node.start(&timer, move |due| remind(due, Arc::clone(&mail)))
    };
    let mut fleet = [node().await?, node().await?, node().await?];
    let first = |n: u32| start + HOUR / 2 + Duration::from_secs(2) * n;
    for n in 0..CUSTOMERS {
        let entry = Entry::keyed(format!("customer {n}"), first(n), "");
        fleet[0].schedule(entry).await?;
    }
    let mut crashes = 0;
    while SystemTime::from(store.time()) < start + 24 * HOUR {
        if clock.random() % 8 == 0 {
            let crashed = clock.random() as usize % fleet.len();
            // The former one is dropped, with all that it was about to do.
            fleet[crashed] = node().await?;
            crashes += 1;
        }
        pass(&clock, &timer, Duration::from_secs(clock.random() % 600)).await;
    }
    let sent = mail.sent.lock().expect("nobody panics under it");
    let mut latest = Duration::ZERO;
    for n in 0..CUSTOMERS {
        for hour in (0..24).map(|hour| first(n) + HOUR * hour) {
            let at = sent.get(&(format!("customer {n}"), hour));
            let at = at.ok_or_else(|| format!("customer {n} has no mail for {hour:?}"))?;
            latest = latest.max(at.duration_since(hour)?); // An error if it is early.
        }
    }
    Ok((sent.len(), latest, crashes))
}

fn main() -> Result<(), Box<dyn Error>> {
    for seed in 1..=3 {
        // In a test of your own: `#[tokio::test]`, whose runtime is the same.
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let (sent, latest, crashes) = runtime
            .block_on(day(seed))
            .map_err(|error| format!("seed {seed}: {error}"))?;
        println!("seed {seed}: {sent} mails in a day, {crashes} crashes, {latest:?} late at most");
        assert_eq!(sent, 24 * CUSTOMERS as usize);
        assert!(latest < HOUR);
    }
    Ok(())
}
