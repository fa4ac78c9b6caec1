//! Delayed operations, which call back into everything from inside their purgatory; and futures,
//! polled by hand, with wakers that note whether they were woken.

use crate::config::Random;
use crate::hand::Hand;
use crate::ledger::{End, Kind, Ticket, drop_as, progress};
use crate::world::{KEYS, Ref, World, act};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use tickwheel::When;
use tickwheel::future::{Interval, Sleep, SleepError, TimedError};
use tickwheel::purgatory::{Cancel, DelayedOperation, Wait, Waited, Watch, WatchError};

pub(crate) struct Operation {
    ticket: Option<Ticket>,
    id: u64,
    weak: Weak<World>,
    random: Random,
    /// The check at which its condition holds.
    holds_at: u64,
    checks: u64,
    /// In a check; still so when it is dropped if that has panicked.
    checking: bool,
    completed: bool,
    expired: bool,
}

impl Operation {
    fn new(world: &World, random: &mut Random, due: u64) -> Self {
        let ticket = world
            .ledger
            .ticket(Kind::Operation, Arc::new(AtomicU64::new(due)));
        let id = ticket.id;
        Operation {
            id,
            weak: Weak::clone(&world.weak),
            random: Random::new(random.below(u64::MAX)),
            holds_at: random.one(&[1, 2, 3, 3, 4, 5, 8, u64::MAX, u64::MAX]),
            checks: 0,
            checking: false,
            completed: false,
            expired: false,
            ticket: Some(ticket),
        }
    }
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        assert!(
            !self.completed && self.ticket.is_some(),
            "checked after its end"
        );
        self.checks += 1;
        self.checking = true;
        // Once: it may trigger a key of its own, and would be checked again each time.
        if self.checks == 2 {
            act(&self.weak, self.random.below(u64::MAX));
        }
        assert!(!self.random.is_rare(64), "planted");
        self.checking = false;
        self.checks >= self.holds_at
    }

    fn on_complete(&mut self) {
        assert!(
            !self.completed && self.ticket.is_some(),
            "completed after its end"
        );
        self.completed = true;
        act(&self.weak, self.id);
    }

    fn on_expiration(&mut self) {
        assert!(
            self.completed && !self.expired,
            "expired once, and after it was completed"
        );
        self.expired = true;
        self.ticket.iter().for_each(Ticket::check_not_early);
    }

    fn on_cancellation(&mut self) {
        assert!(!self.completed, "cancelled after its end");
        if let Some(ticket) = self.ticket.take() {
            ticket.end(End::Cancelled);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let end = if self.completed {
            End::Fired
        } else {
            End::Panicked
        };
        if let Some(ticket) = self.ticket.take_if(|_| self.completed || self.checking) {
            ticket.end(end);
        }
    }
}

/// Checks whether an operation may be refused like this.
pub(crate) fn check_refusal<O>(world: &World, error: &WatchError<O>, keys: &[u32]) {
    assert!(match error {
        WatchError::NoKeys(_) => keys.is_empty(),
        WatchError::Full(_) => world.config.max_pending.is_some(),
        _ => world.shut.load(SeqCst) || world.purgatory_shut.load(SeqCst),
    });
}

impl Hand {
    pub(crate) fn keys(&mut self) -> Vec<u32> {
        let count = self.random.one(&[0, 1, 1, 1, 1, 2, 2, 3, 5]);
        (0..count).map(|_| self.random.below(KEYS) as u32).collect()
    }

    pub(crate) fn operation_step(&mut self, world: &Ref) {
        let purgatory = &world.purgatory;
        let key = self.random.below(KEYS) as u32;
        match self.random.below(16) {
            0..6 => self.watch(world),
            6..9 => drop(purgatory.check_and_complete(&key)),
            9 => self
                .keys()
                .iter()
                .for_each(|key| _ = purgatory.check_and_complete(key)),
            10 => drop_as(End::Cancelled, purgatory.cancel_for_key(&key)),
            11 => drop((
                purgatory.stats().watched,
                purgatory.len(),
                purgatory.watched_for(&key),
            )),
            12 => self.trigger_waits(world),
            _ => self.end_one(world),
        }
    }

    fn watch(&mut self, world: &Ref) {
        let (when, due) = self.when(world);
        let keys = self.keys();
        let operation = Operation::new(world, &mut self.random, due);
        match world
            .purgatory
            .try_complete_else_watch(operation, when, &keys)
        {
            Ok(Watch::Completed) => {}
            Ok(Watch::Pending(pending)) => {
                let mut pendings = world.pendings.lock().unwrap();
                pendings.push(pending);
                if pendings.len() > 64 {
                    pendings.swap_remove(0);
                }
            }
            Err(error) => {
                check_refusal(world, &error, &keys);
                drop_as(End::Refused, error);
            }
        }
    }

    fn end_one(&mut self, world: &World) {
        let pending = self.random.take(&mut world.pendings.lock().unwrap());
        let Some(pending) = pending else { return };
        match self.random.below(4) {
            0 => assert!(!pending.force_complete() || !pending.is_pending()),
            1 => drop_as(End::Guarded, pending.cancel_on_drop()),
            2 => {
                let cancelled = pending.cancel();
                let ended = !matches!(cancelled, Cancel::Deferred);
                drop_as(End::Cancelled, cancelled);
                assert!(!ended || matches!(pending.cancel(), Cancel::Finished));
            }
            _ => {} // Nobody has its handle any more.
        }
    }
}

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
                    assert!(
                        world.ledger.nanos(due) <= world.ledger.now(),
                        "a tick is early"
                    );
                    false
                }
                Err(error) => check_error(world, error),
            }),
            Waiting::Wait(wait) => Pin::new(wait)
                .poll(context)
                .map(|waited| waited == Waited::Expired),
        };
        self.waits = ended.is_pending();
        if let Poll::Ready(true) = ended {
            let now = world.ledger.now();
            assert!(
                now >= self.due,
                "a future is early: {now} is before {}",
                self.due
            );
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
        When::At(_) | When::Never => due.max(world.ledger.now()),
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
        let future = match self.random.below(8) {
            0..2 => Waiting::Timed(Box::pin(world.timer.timeout(when, self.inner()))),
            2 => Waiting::Interval(world.timer.interval(match when {
                When::After(delay) => delay,
                When::At(instant) => instant.saturating_duration_since(world.timer.now()),
                When::Never => crate::Duration::MAX,
            })),
            3..5 => {
                let keys = self.keys();
                let checks = AtomicU64::new(self.random.below(8));
                let condition = move || checks.fetch_sub(1, SeqCst) == 1;
                match world.waits.wait(condition, when, &keys) {
                    Ok(wait) => Waiting::Wait(wait),
                    Err(error) => return check_refusal(world, &error, &keys),
                }
            }
            _ => Waiting::Sleep(world.timer.sleep(when)),
        };
        // Its ticks check that they are not early, and who knows when the next one is.
        let ticks = matches!(future, Waiting::Interval(_));
        let (due, latest) = if ticks {
            (0, u64::MAX)
        } else {
            (due, latest(world, when, due))
        };
        self.asleep.push(Sleeping {
            future,
            due,
            latest,
            woken: Arc::default(),
            waits: false,
        });
    }

    /// Returns a future under a time limit: ready after some polls, or never.
    fn inner(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let mut polls = self.random.one(&[1, 2, 4, u64::MAX]);
        std::future::poll_fn(move |_| {
            polls -= 1;
            if polls == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    fn reset(&mut self, world: &World, nth: usize) {
        let (when, due) = self.when(world);
        let sleeping = &mut self.asleep[nth];
        let Waiting::Sleep(sleep) = &mut sleeping.future else {
            return;
        };
        sleep.reset(when);
        sleeping.due = due;
        sleeping.latest = latest(world, when, due);
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
