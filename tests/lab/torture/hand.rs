//! A hand: what one thread, or one task that calls back, has and does; timers and their handles.

use crate::config::Random;
use crate::config::{Config, Ending, Mix};
use crate::ledger::{End, Kind, drop_as, last_dropped, progress};
use crate::operations::Sleeping;
use crate::world::{Handle, Ref, World, depth, run};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::periodic::Series;
use tickwheel::{AddError, Cancel, CancelOnDrop, SharedClosure, Task, Timeout, TimerEntry, When};

pub(crate) struct Hand {
    pub(crate) random: Random,
    /// Handles that nobody else has.
    pub(crate) own: Vec<Handle>,
    pub(crate) guards: Vec<CancelOnDrop>,
    pub(crate) asleep: Vec<Sleeping>,
    pub(crate) series: Vec<Series>,
    /// A key that nobody else has, and when its task is due.
    pub(crate) own_key: Option<(u32, Arc<AtomicU64>)>,
}

impl Hand {
    pub(crate) fn new(random: Random) -> Self {
        Hand {
            random,
            own: Vec::new(),
            guards: Vec::new(),
            asleep: Vec::new(),
            series: Vec::new(),
            own_key: None,
        }
    }

    /// Does everything that a long-lived thread does in a round.
    pub(crate) fn work(&mut self, world: &Ref, thread: usize) {
        let Config {
            operations,
            ending,
            mix,
            ..
        } = world.config;
        for operation in 0..operations {
            if ending == Ending::Shutdown && thread == 0 && operation == operations / 2 {
                world.shut_down();
            }
            if mix != Mix::Timers && operation % 512 == 511 {
                self.short_lived_thread(world);
            }
            self.step(world);
        }
    }

    /// Makes one call of some kind.
    pub(crate) fn step(&mut self, world: &Ref) {
        progress();
        let kind = self.random.below(32);
        match world.config.mix {
            Mix::Timers => self.timer_step(world),
            Mix::Calls if kind < 28 => self.timer_step(world),
            Mix::Calls => self.rare_step(world),
            Mix::Everything => match kind {
                0..10 => self.timer_step(world),
                10..15 => self.key_step(world),
                15..21 => self.operation_step(world),
                21..27 => self.future_step(world),
                27..29 => self.series_step(world),
                _ => self.rare_step(world),
            },
        }
    }

    /// Returns when something has to be due, and not before how many nanoseconds of the ledger.
    pub(crate) fn when(&mut self, world: &World) -> (When, u64) {
        let now = world.ledger.now();
        let delay = world.config.delay(&mut self.random, now);
        let due = now.saturating_add(delay);
        match self.random.below(16) {
            0 => {
                let past = now.saturating_sub(delay);
                (When::At(world.ledger.instant(past)), past)
            }
            1..6 => (When::At(world.ledger.instant(due)), due),
            6..10 if delay == u64::MAX => (When::After(Duration::MAX), u64::MAX),
            _ if delay == u64::MAX => (When::Never, u64::MAX),
            _ => (When::After(Duration::from_nanos(delay)), due),
        }
    }

    pub(crate) fn advance(&mut self, world: &World) {
        // A turn inside a turn's task, but not without end.
        if depth() < 2 {
            let waits = self.random.is_rare(16);
            world
                .timer
                .advance_clock(Duration::from_micros(if waits { 30 } else { 0 }));
        }
    }

    pub(crate) fn move_clock(&mut self, world: &World) {
        let Some(clock) = &world.clock else { return };
        let next = if self.random.is_rare(4) {
            world.timer.next_expiration()
        } else {
            None
        };
        match next {
            // Not into the far future all the time: then all is in the past.
            Some(next) if world.ledger.nanos(next) < world.ledger.now() + (1 << 50) => {
                clock.advance_to(next);
            }
            _ => {
                let step = world.config.step(&mut self.random, world.ledger.now());
                clock.advance(Duration::from_nanos(step));
            }
        }
    }

    /// Makes a call that looks at everything, or is made once in a while.
    fn rare_step(&mut self, world: &Ref) {
        match self.random.below(16) {
            0..2 => drop(world.timer.snapshot()),
            2..4 => drop(world.timer.stats().to_string()),
            4..6 => drop(world.timer.next_expiration()),
            6..8 => drop(
                world
                    .timer
                    .downgrade()
                    .upgrade()
                    .map(|timer| timer.is_empty()),
            ),
            8 => drop(world.purgatory.stats()),
            9 => drop(world.keyed.len()),
            10 if world.config.ending == Ending::Shutdown && self.random.is_rare(50) => {
                world.shut_down();
            }
            11 if world.config.ending == Ending::Shutdown && self.random.is_rare(50) => {
                world.purgatory_shut.store(true, SeqCst);
                drop_as(End::Returned, world.purgatory.shutdown());
            }
            12 if self.random.is_rare(10) => drop_as(End::Cancelled, world.keyed.cancel_all()),
            _ => self.move_clock(world),
        }
    }

    fn short_lived_thread(&mut self, world: &Ref) {
        let mut hand = Hand::new(Random::new(self.random.below(u64::MAX)));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                (0..8).for_each(|_| hand.step(world));
                hand.finish(world);
            });
        });
    }

    /// Leaves what it has to the world.
    pub(crate) fn finish(mut self, world: &World) {
        let mut kept = world.kept.lock().unwrap();
        kept.extend(self.own.drain(..).map(Arc::new));
        drop(kept);
        world.asleep.lock().unwrap().append(&mut self.asleep);
        for series in self.series.drain(..) {
            series.cancel();
        }
        drop_as(End::Guarded, self.guards);
    }
}

/// Handles that a thread has at most, and the pile.
const OWN: usize = 64;
const PILE: usize = 128;

impl Hand {
    pub(crate) fn timer_step(&mut self, world: &Ref) {
        match self.random.below(64) {
            0..23 => self.add(world),
            23 => self.add_for_now(world),
            24..32 => self.cancel(world),
            32..40 => self.extend(world),
            40..45 => self.reschedule(world),
            45..48 => self.replace(world),
            48..56 => self.advance(world),
            56..63 if world.clock.is_some() => self.move_clock(world),
            56..61 => self.cancel(world),
            61..63 => drop(world.timer.next_expiration()),
            _ => assert!(world.timer.len() < usize::MAX / 2),
        }
    }

    fn add(&mut self, world: &Ref) {
        let (when, due) = self.when(world);
        let bound = Arc::new(AtomicU64::new(due));
        if self.random.is_rare(32) {
            if let Some(number) = world.ledger.next_shared() {
                return self.add_shared(world, when, bound, number);
            }
        }
        let ticket = world.ledger.ticket(Kind::Timer, Arc::clone(&bound));
        let id = ticket.id;
        let weak = Weak::clone(&world.weak);
        let task = Task::new(move || run(ticket, &weak));
        if let Some(timeout) = self.try_add(world, TimerEntry::new(when, task)) {
            self.keep(world, Handle { id, timeout, bound });
        }
    }

    /// Adds a timer whose time has come: the next turn expires it, whatever other threads do. If
    /// another thread's turn, which began later, files it under its own tick, one more turn does.
    fn add_for_now(&mut self, world: &World) {
        let ticket = world.ledger.ticket(Kind::Timer, Arc::default());
        let entry = TimerEntry::after(Duration::ZERO, Task::new(move || ticket.fire()));
        let Some(timeout) = self.try_add(world, entry) else {
            return;
        };
        // As deep as `advance` goes.
        if depth() < 2 {
            (0..2).for_each(|_| _ = world.timer.advance_clock(Duration::ZERO));
            assert!(
                !timeout.is_pending() || world.shut.load(SeqCst),
                "a turn left what was due"
            );
        }
    }

    fn add_shared(&mut self, world: &Ref, when: When, bound: Arc<AtomicU64>, number: u64) {
        let ledger = Arc::clone(&world.ledger);
        let closure: SharedClosure = Arc::new(move |number| ledger.end_shared(number));
        let entry = TimerEntry::new(when, Task::shared(closure, number));
        if let Some(timeout) = self.try_add(world, entry) {
            self.own.push(Handle {
                id: Handle::SHARED | number,
                timeout,
                bound,
            });
        }
    }

    fn try_add(&mut self, world: &World, entry: TimerEntry) -> Option<Timeout> {
        match world.timer.add(entry) {
            Ok(timeout) => Some(timeout),
            Err(error) => {
                refused(world, error);
                None
            }
        }
    }

    fn keep(&mut self, world: &World, handle: Handle) {
        match self.random.below(16) {
            0 => cancel(world, &handle),
            1 => drop(handle),
            2 => self.guards.push(handle.timeout.cancel_on_drop()),
            3..7 => {
                let mut pile = world.pile.lock().unwrap();
                pile.push(Arc::new(handle));
                let excess = (pile.len() > PILE).then(|| pile.swap_remove(0));
                drop(pile);
                if let Some(handle) = excess {
                    world.kept.lock().unwrap().push(handle);
                }
            }
            _ => self.own.push(handle),
        }
        if self.guards.len() > 8 {
            let guard = self.guards.swap_remove(0);
            if self.random.is_rare(4) {
                assert!(!guard.disarm().is_cancelled());
            } else {
                drop_as(End::Guarded, guard);
            }
        }
        if self.own.len() > OWN {
            let handle = self.own.swap_remove(0);
            cancel(world, &handle);
        }
    }

    /// Takes a handle that other threads may have as well, and still have in most cases.
    fn piled(&mut self, world: &World) -> Option<Arc<Handle>> {
        let mut pile = world.pile.lock().unwrap();
        if self.random.is_rare(2) {
            return self.random.take(&mut pile);
        }
        let nth = self.random.below(pile.len().max(1) as u64) as usize;
        pile.get(nth).cloned()
    }

    fn owned(&mut self) -> Option<&mut Handle> {
        let nth = self.random.below(self.own.len().max(1) as u64) as usize;
        self.own.get_mut(nth)
    }

    fn cancel(&mut self, world: &World) {
        if self.random.is_rare(3) {
            if let Some(handle) = self.piled(world) {
                cancel(world, &handle);
            }
        } else if let Some(handle) = self.random.take(&mut self.own) {
            cancel(world, &handle);
            let state = (handle.timeout.is_cancelled(), handle.timeout.is_expired());
            assert!(
                state.0 != state.1,
                "either cancelled or expired, and not {state:?}"
            );
        }
    }

    fn extend(&mut self, world: &World) {
        let (when, due) = self.when(world);
        let extend = |handle: &Handle| handle.timeout.touch(when);
        if self.random.is_rare(3) {
            if let Some(handle) = self.piled(world) {
                extend(&handle);
            }
        } else if let Some(handle) = self.owned() {
            let least = due.max(handle.bound.load(SeqCst));
            let was_pending = extend(handle);
            note_moved(world, handle, was_pending, least);
        }
    }

    fn reschedule(&mut self, world: &World) {
        let (when, due) = self.when(world);
        let reschedule = |handle: &Handle| {
            handle.bound.fetch_min(due, SeqCst);
            handle.timeout.reschedule(when)
        };
        if self.random.is_rare(3) {
            if let Some(handle) = self.piled(world) {
                reschedule(&handle);
            }
        } else if let Some(handle) = self.owned() {
            let was_pending = reschedule(handle);
            note_moved(world, handle, was_pending, due);
        }
    }

    /// Gives another task to a timer that no other thread has.
    fn replace(&mut self, world: &World) {
        let weak = Weak::clone(&world.weak);
        let Some(handle) = self
            .owned()
            .filter(|handle| handle.id & Handle::SHARED == 0)
        else {
            return;
        };
        let ticket = world.ledger.ticket(Kind::Timer, Arc::clone(&handle.bound));
        let id = ticket.id;
        match handle
            .timeout
            .replace(Task::new(move || run(ticket, &weak)))
        {
            Ok(former) => {
                drop_as(End::Replaced, former);
                assert_eq!(last_dropped(), handle.id, "replaced another timer's task");
                handle.id = id;
            }
            Err(task) => {
                drop_as(End::Replaced, task);
                assert_eq!(last_dropped(), id);
                assert!(handle.timeout.is_expired());
            }
        }
    }
}

/// Checks that a timer refuses for a reason.
pub(crate) fn refused<T>(world: &World, error: AddError<T>) {
    assert!(match &error {
        AddError::Full(_) => world.config.max_pending.is_some(),
        _ => world.shut.load(SeqCst),
    });
    drop_as(End::Refused, error);
}

/// Notes a move by the only owner: the deadline is exactly what the handle says, and at least what
/// was asked for.
fn note_moved(world: &World, handle: &Handle, was_pending: bool, least: u64) {
    let shut = world.shut.load(SeqCst);
    assert!(was_pending || shut || handle.timeout.is_expired());
    if let Some(deadline) = handle.timeout.deadline().filter(|_| was_pending) {
        let deadline = world.ledger.nanos(deadline);
        // The last two nanoseconds of time are one to the timer: they never come.
        assert!(
            deadline >= least.min(u64::MAX - 2),
            "moved to {deadline}, before {least}"
        );
        handle.bound.store(deadline, SeqCst);
    }
}

pub(crate) fn cancel(world: &World, handle: &Handle) {
    match handle.timeout.cancel() {
        Cancel::Cancelled(task) => {
            drop_as(End::Cancelled, task);
            match handle.id & Handle::SHARED {
                0 => assert_eq!(last_dropped(), handle.id, "cancelled another timer"),
                _ => world.ledger.end_shared(handle.id & !Handle::SHARED),
            }
            assert!(matches!(handle.timeout.cancel(), Cancel::AlreadyCancelled));
        }
        Cancel::Expired => assert!(handle.timeout.is_expired()),
        Cancel::AlreadyCancelled => assert!(handle.timeout.is_cancelled()),
    }
}
