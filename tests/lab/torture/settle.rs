//! The end of a round: all is quiet, and has to add up.

use crate::config::{Ending, Mix};
use crate::ledger::{End, Kind, drop_as};
use crate::timers::cancel;
use crate::world::{Handle, KEYS, World};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use tickwheel::{AddError, Task, TimerEntry};

/// Waits for what has to come. That the watchdog does not bite is the proof that it comes.
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Settles the round: the threads have left; a reaper, or a worker, is still there.
pub(crate) fn settle(world: &World) {
    world.calm.store(true, SeqCst);
    wait_until(|| world.calls.load(SeqCst) == 0);
    world.kept.lock().unwrap().append(&mut world.pile.lock().unwrap());
    if world.config.ending == Ending::Settle {
        everything_due_expires(world);
        if let Some(clock) = &world.clock {
            // Over all levels at once, and on to where only what is never due is left.
            clock.advance(Duration::from_secs(3600));
            everything_due_expires(world);
            clock.advance(Duration::from_secs(400 * 365 * 24 * 3600));
            everything_due_expires(world);
        }
        everybody_is_woken(world);
    }
    check_invariants(world);
    if world.config.ending == Ending::Settle {
        limit_is_whole(world);
    }
    world.shut_down();
    check_invariants(world);
    check_stats(world);
}

fn handles(world: &World) -> Vec<Arc<Handle>> {
    world.kept.lock().unwrap().clone()
}

/// Checks that one call expires everything that is due, whatever other threads do; with a reaper no
/// call is needed.
fn everything_due_expires(world: &World) {
    // The last two nanoseconds of time never come: the deadline of what is never due is there.
    let (now, tick) = (world.ledger.now().min(u64::MAX - 2), world.config.tick.as_nanos() as u64);
    // What falls due within a tick expires at its end.
    let is_due = |deadline: Option<Instant>| {
        deadline.is_some_and(|deadline| world.ledger.nanos(deadline).saturating_add(tick) <= now)
    };
    if world.config.seed % 2 == 0 || !world.config.reaper {
        world.timer.advance_clock(Duration::ZERO);
        for handle in handles(world) {
            let deadline = handle.timeout.deadline();
            assert!(!is_due(deadline), "it is {now:?}, {deadline:?} has passed, and it is pending");
        }
    }
    let handles = handles(world);
    wait_until(|| !handles.iter().any(|handle| is_due(handle.timeout.deadline())));
    // A key that was extended is filed anew when its former deadline comes. One is not enough.
    wait_until(|| {
        world.timer.advance_clock(Duration::ZERO);
        let due = |key| is_due(world.keyed.deadline(&key));
        world.config.loses() || !(0..KEYS as u32).any(due)
    });
    assert!(world.timer.next_expiration().is_none_or(|next| world.ledger.nanos(next) >= now));
}

/// Checks that no wake-up is lost.
fn everybody_is_woken(world: &World) {
    if world.config.loses() {
        return;
    }
    let tick = world.config.tick.as_nanos() as u64;
    let now = world.ledger.now().min(u64::MAX - 2).saturating_sub(tick);
    // There may be no reaper, and the real clock has moved on.
    world.timer.advance_clock(Duration::ZERO);
    let mut asleep = world.asleep.lock().unwrap();
    wait_until(|| !asleep.iter().any(|sleeping| sleeping.is_forgotten(now)));
    asleep.retain_mut(|sleeping| !sleeping.poll(world));
}

/// Checks that all permits come back: as many as the limit allows can be added again, and no more.
fn limit_is_whole(world: &World) {
    let Some(max_pending) = world.config.max_pending else { return };
    handles(world).iter().for_each(|handle| cancel(world, handle));
    drop_as(End::Guarded, std::mem::take(&mut *world.asleep.lock().unwrap()));
    drop_as(End::Cancelled, world.keyed.cancel_all());
    drop_as(End::Returned, world.purgatory.shutdown());
    drop(world.waits.shutdown());
    let mut added = Vec::new();
    // The round of leases, which cannot be refused, may go above the limit. Again, because those
    // whose handles nobody has may expire meanwhile.
    wait_until(|| {
        loop {
            match world.timer.add(TimerEntry::after(Duration::MAX, Task::new(|| ()))) {
                Ok(timeout) => added.push(timeout.cancel_on_drop()),
                Err(AddError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        (max_pending..=max_pending + 1).contains(&world.timer.len())
    });
}

fn check_invariants(world: &World) {
    world.timer.assert_invariants();
    world.keyed.assert_invariants();
    world.purgatory.assert_invariants();
    world.waits.assert_invariants();
}

/// Checks the statistics after the timer's shutdown, when no count can change any more.
fn check_stats(world: &World) {
    // Keys and operations are not the timer's to return.
    drop_as(End::Cancelled, world.keyed.cancel_all());
    drop_as(End::Returned, world.purgatory.shutdown());
    drop(world.waits.shutdown());
    let stats = world.timer.stats();
    assert_eq!(stats.pending, 0, "after a shutdown");
    assert_eq!(stats.added, stats.expired + stats.cancelled + stats.returned, "{stats}");
    assert_eq!(stats.lateness.count(), stats.expired);
    assert!(handles(world).iter().all(|handle| !handle.timeout.is_pending()));
    // A worker may still be at it.
    wait_until(|| world.ledger.open(Kind::Timer) == 0);
    let ledger = &world.ledger;
    let lost = stats.refused + stats.panicked;
    let unexplained = ledger.unexplained();
    assert!(unexplained == 0 || world.config.loses() && unexplained <= lost, "{}", ledger.text());
    // Otherwise others add timers as well; and a task that shares its closure has no ticket.
    if world.config.mix == Mix::Timers && world.config.max_pending.is_none() {
        let ended = |end| ledger.ended(Kind::Timer, end);
        let gone = ended(End::Fired) + ended(End::Rejected) + unexplained;
        assert!(gone <= stats.expired, "{gone} ran, {} expired", stats.expired);
        assert!(ended(End::Cancelled) + ended(End::Guarded) <= stats.cancelled);
        let added = ledger.made(Kind::Timer) - ended(End::Refused) - ended(End::Replaced);
        assert!(added <= stats.added && stats.added - added <= ledger.shared(), "{stats}");
    }
}
