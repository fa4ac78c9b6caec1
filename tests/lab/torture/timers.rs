//! Timers and their handles.

use crate::hand::Hand;
use crate::ledger::{End, Kind, drop_as, last_dropped};
use crate::world::{Handle, Ref, World, run};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use tickwheel::{AddError, Cancel, SharedClosure, Task, Timeout, TimerEntry, When};

/// Handles that a thread has at most, and the pile.
const OWN: usize = 64;
const PILE: usize = 128;

impl Hand {
    pub(crate) fn timer_step(&mut self, world: &Ref) {
        match self.random.below(64) {
            0..24 => self.add(world),
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
        let (id, weak) = (ticket.id, Weak::clone(&world.weak));
        let task = Task::new(move || run(ticket, &weak));
        if let Some(timeout) = self.try_add(world, TimerEntry::new(when, task)) {
            self.keep(world, Handle { id, timeout, bound });
        }
    }

    fn add_shared(&mut self, world: &Ref, when: When, bound: Arc<AtomicU64>, number: u64) {
        let ledger = Arc::clone(&world.ledger);
        let closure: SharedClosure = Arc::new(move |number| ledger.end_shared(number));
        let entry = TimerEntry::new(when, Task::shared(closure, number));
        if let Some(timeout) = self.try_add(world, entry) {
            self.own.push(Handle { id: Handle::SHARED | number, timeout, bound });
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
            assert!(state.0 != state.1, "either cancelled or expired, and not {state:?}");
        }
    }

    fn extend(&mut self, world: &World) {
        let (when, due) = self.when(world);
        let extend = |handle: &Handle| match when {
            When::After(delay) => handle.timeout.touch(delay),
            When::At(instant) => handle.timeout.touch_at(instant),
        };
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
            match when {
                When::After(delay) => handle.timeout.reschedule(delay),
                When::At(instant) => handle.timeout.reschedule_at(instant),
            }
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
        let Some(handle) = self.owned().filter(|handle| handle.id & Handle::SHARED == 0) else {
            return;
        };
        let ticket = world.ledger.ticket(Kind::Timer, Arc::clone(&handle.bound));
        let id = ticket.id;
        match handle.timeout.replace(Task::new(move || run(ticket, &weak))) {
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
        assert!(deadline >= least.min(u64::MAX - 2), "moved to {deadline}, before {least}");
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
