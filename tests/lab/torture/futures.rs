//! Futures, polled by hand, with wakers that note whether they were woken.

use crate::hand::Hand;
use crate::ledger::{End, drop_as, progress};
use crate::operations::check_refusal;
use crate::world::{Ref, World};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use tickwheel::When;
use tickwheel::future::{Interval, Sleep, SleepError, TimedError};
use tickwheel::purgatory::{Wait, Waited};

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
        progress();
    }
}

type Timed = Pin<Box<dyn Future<Output = Result<(), TimedError>> + Send>>;

enum Waiting {
    Sleep(Sleep),
    Timed(Timed),
    Interval(Interval),
    Wait(Wait<u32>),
}

pub(crate) struct Sleeping {
    future: Waiting,
    /// When its time is up, in nanoseconds of the ledger: not before the one, and not after the
    /// other, because the clock may have moved while it was made.
    due: u64,
    latest: u64,
    /// Whom the last poll was told to wake.
    woken: Arc<Woken>,
    /// Whether the last poll found it not ready.
    waits: bool,
}

impl Sleeping {
    /// Returns whether it is time for it to be woken, and it was not.
    pub(crate) fn is_forgotten(&self, now: u64) -> bool {
        self.waits && self.latest <= now && !self.woken.0.load(SeqCst)
    }

    /// Returns whether it is ready.
    pub(crate) fn poll(&mut self, world: &World) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        let context = &mut Context::from_waker(&waker);
        let ended = match &mut self.future {
            Waiting::Sleep(sleep) => Pin::new(sleep).poll(context).map(|slept| match slept {
                Ok(()) => true,
                Err(error) => check_error(world, error),
            }),
            Waiting::Timed(timed) => timed.as_mut().poll(context).map(|timed| match timed {
                Err(TimedError::Sleep(error)) => check_error(world, error),
                Err(_) => true,
                Ok(()) => false,
            }),
            Waiting::Interval(interval) => interval.poll_tick(context).map(|tick| match tick {
                Ok(due) => {
                    assert!(world.ledger.nanos(due) <= world.ledger.now(), "a tick is early");
                    false
                }
                Err(error) => check_error(world, error),
            }),
            Waiting::Wait(wait) => {
                Pin::new(wait).poll(context).map(|waited| waited == Waited::Expired)
            }
        };
        self.waits = ended.is_pending();
        if let Poll::Ready(true) = ended {
            let now = world.ledger.now();
            assert!(now >= self.due, "a future is early: {now} is before {}", self.due);
        }
        ended.is_ready()
    }
}

/// Checks that the error is not the end of its time.
fn check_error(world: &World, error: SleepError) -> bool {
    assert!(match error {
        SleepError::Full => world.config.max_pending.is_some(),
        _ => world.shut.load(SeqCst),
    });
    false
}

/// Returns the latest time at which something is due that was made just now.
fn latest(world: &World, when: When, due: u64) -> u64 {
    match when {
        When::After(delay) => {
            let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
            world.ledger.now().saturating_add(delay)
        }
        When::At(_) => due.max(world.ledger.now()),
    }
}

impl Hand {
    pub(crate) fn future_step(&mut self, world: &Ref) {
        let nth = self.random.below(self.asleep.len().max(1) as u64) as usize;
        if self.asleep.is_empty() || self.random.is_rare(3) {
            self.fall_asleep(world);
        } else if self.random.is_rare(8) {
            drop_as(End::Guarded, self.asleep.swap_remove(nth));
        } else if self.random.is_rare(6) {
            self.reset(world, nth);
        } else {
            let sleeping = &mut self.asleep[nth];
            if self.random.is_rare(3) {
                sleeping.woken = Arc::default();
            }
            if sleeping.poll(world) {
                self.asleep.swap_remove(nth);
            }
        }
        if self.asleep.len() > 24 {
            drop_as(End::Guarded, self.asleep.swap_remove(0));
        }
    }

    fn fall_asleep(&mut self, world: &Ref) {
        let (when, due) = self.when(world);
        let delay = match when {
            When::After(delay) => delay,
            When::At(instant) => instant.saturating_duration_since(world.timer.now()),
        };
        let future = match (self.random.below(8), when) {
            (0..2, _) => Waiting::Timed(Box::pin(world.timer.timeout(delay, self.inner()))),
            (2, _) => Waiting::Interval(world.timer.interval(delay)),
            (3..5, _) => {
                let keys = self.keys();
                let checks = AtomicU64::new(self.random.below(8));
                let condition = move || checks.fetch_sub(1, SeqCst) == 1;
                match world.waits.wait(&keys, when, condition) {
                    Ok(wait) => Waiting::Wait(wait),
                    Err(error) => return check_refusal(world, &error, &keys),
                }
            }
            (_, When::After(delay)) => Waiting::Sleep(world.timer.sleep(delay)),
            (_, When::At(instant)) => Waiting::Sleep(world.timer.sleep_until(instant)),
        };
        // Its ticks check that they are not early, and who knows when the next one is.
        let ticks = matches!(future, Waiting::Interval(_));
        let (due, latest) = if ticks { (0, u64::MAX) } else { (due, latest(world, when, due)) };
        self.asleep.push(Sleeping { future, due, latest, woken: Arc::default(), waits: false });
    }

    /// Returns a future under a time limit: ready after some polls, or never.
    fn inner(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let mut polls = self.random.one(&[1, 2, 4, u64::MAX]);
        std::future::poll_fn(move |_| {
            polls -= 1;
            if polls == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    fn reset(&mut self, world: &World, nth: usize) {
        let (when, due) = self.when(world);
        let sleeping = &mut self.asleep[nth];
        let Waiting::Sleep(sleep) = &mut sleeping.future else { return };
        match when {
            When::After(delay) => sleep.reset(delay),
            When::At(instant) => sleep.reset_at(instant),
        }
        (sleeping.due, sleeping.latest) = (due, latest(world, when, due));
        // Its waker may have been used up.
        if sleeping.poll(world) {
            self.asleep.swap_remove(nth);
        }
    }

    /// Wakes operations that futures wait for.
    pub(crate) fn trigger_waits(&mut self, world: &World) {
        let key = self.random.below(crate::world::KEYS) as u32;
        match self.random.below(8) {
            0 => drop(world.waits.cancel_for_key(&key)),
            _ => drop(world.waits.check_and_complete(&key)),
        }
    }
}
