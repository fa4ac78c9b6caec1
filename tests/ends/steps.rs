//! The steps of the storm: what its threads, tasks, wakers, executors and operations do.

use crate::HOUR;
use crate::site::{Handle, Piece, STEPS, Site, Token};
use crate::storm::{PLAIN, check, doing};
use fastrand::Rng;
use std::future::pending;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use tickwheel::future::TimedError;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{self, Purgatory, Watch};
use tickwheel::{Timer, TimerEntry};

fn delay(random: &mut Rng) -> Duration {
    match random.u64(..8) {
        0 => Duration::ZERO,
        1 => HOUR,
        _ => Duration::from_micros(random.u64(..500)),
    }
}

/// Makes a step at a site: uses a part or a handle, or lets go of it.
pub(crate) fn step(site: &Arc<Site>, random: &mut Rng) {
    STEPS.set(STEPS.get() + 1);
    let nth = random.u64(..32) as usize;
    match random.u64(..16) {
        0 => {
            let mut pieces = site.pieces.lock().unwrap();
            let piece = (nth < pieces.len()).then(|| pieces.swap_remove(nth));
            drop(pieces);
            piece
                .into_iter()
                .for_each(|piece| doing(format!("drops {}", piece.name()), || drop(piece)));
        }
        // Tasks end timers more often: those of two timers, each other's.
        1 if !PLAIN.get() || random.u64(..8) == 0 => shut_down(site, random),
        1..6 => {
            let mut handles = site.handles.lock().unwrap();
            let handle = (nth < handles.len()).then(|| handles.swap_remove(nth));
            drop(handles);
            handle
                .into_iter()
                .for_each(|handle| use_handle(site, handle, random));
        }
        _ => {
            let piece = site.pieces.lock().unwrap().get(nth % 8).cloned();
            piece.into_iter().for_each(|piece| {
                doing(format!("uses {}", piece.name()), || {
                    use_piece(site, piece, random)
                });
            });
        }
    }
    STEPS.set(STEPS.get() - 1);
}

fn shut_down(site: &Site, random: &mut Rng) {
    let pieces = site.pieces.lock().unwrap().clone();
    let timer = pieces.into_iter().find(|piece| match piece {
        Piece::Timer(_) => !site.own,
        piece => matches!(piece, Piece::Own(_)),
    });
    let Some(timer) = timer else { return };
    site.begun.store(true, SeqCst);
    doing("shuts it down".to_owned(), || match timer {
        Piece::Timer(timer) if random.u64(..2) == 0 => {
            timer
                .shutdown()
                .into_iter()
                .for_each(|entry| entry.into_task().run());
        }
        Piece::Timer(timer) => drop(timer.shutdown()),
        Piece::Own(timer) => drop(timer.shutdown()),
        _ => {}
    });
    // A task on the reaper does not wait for it; so neither does a call in a task.
    if PLAIN.get() && STEPS.get() == 1 {
        site.ended.store(true, SeqCst);
    }
}

fn use_piece(site: &Arc<Site>, piece: Piece, random: &mut Rng) {
    let token = Token::new(site);
    let delay = delay(random);
    let key = random.u64(..8) as u32;
    match piece {
        Piece::Timer(timer) => use_timer(site, &timer, random),
        Piece::Own(timer) => match random.u64(..8) {
            0..4 => site.add(Piece::Timer(timer.closures())),
            _ => site.accepts(timer.after(delay, 1_u64).is_ok()),
        },
        Piece::Keyed(keyed) => match random.u64(..6) {
            0 => drop(keyed.cancel(&key)),
            1 => _ = keyed.touch(&key, delay),
            2 => _ = keyed.reschedule(&key, delay),
            3 => drop(keyed.cancel_all()),
            _ => site.accepts(keyed.add(key, delay, token).is_ok()),
        },
        Piece::Purgatory(purgatory) => match random.u64(..6) {
            0 | 1 => _ = purgatory.check_and_complete(&key),
            2 => drop(purgatory.cancel_for_key(&key)),
            _ => {
                let watch = purgatory.try_complete_else_watch(token, delay, &[key, key / 2]);
                match watch.map(Watch::pending) {
                    Ok(None) => {}
                    watch => site.keep(watch.map(|it| Handle::Pending(it.expect("it waits")))),
                }
            }
        },
        Piece::Sleep(sleep) => _ = site.poll(&sleep),
    }
}

fn use_timer(site: &Arc<Site>, timer: &Timer, random: &mut Rng) {
    let token = Token::new(site);
    let delay = delay(random);
    match random.u64(..16) {
        0..3 => build_on(site, timer, random),
        3 | 4 => {
            // It has a sleep inside.
            let timed = timer.timeout(delay, pending::<()>());
            let slept = async move { timed.await == Err(TimedError::Elapsed) };
            site.add(Piece::Sleep(Arc::new(Mutex::new(Some(Box::pin(slept))))));
        }
        5..8 => {
            let period = delay + Duration::from_micros(50);
            let series = Periodic::every(period).start(timer, move |_| token.expire());
            site.keep(series.map(|series| Handle::Series(series, Arc::default())));
        }
        8 => drop((timer.stats(), timer.snapshot(), timer.len())),
        9 => _ = timer.next_expiration(),
        10 if !site.strict => _ = timer.advance_clock(delay.min(Duration::from_millis(1))),
        _ => site.keep(
            timer
                .after(delay, move || token.expire())
                .map(Handle::Timeout),
        ),
    }
}

/// Builds something on a timer, and checks that it is new: nobody else has ended or used it.
fn build_on(site: &Arc<Site>, timer: &Timer, random: &mut Rng) {
    let quiet = || Token {
        site: Arc::clone(site),
        quiet: true,
    };
    match random.u64(..3) {
        0 => {
            let keyed = KeyedTimer::new(timer, |key, token: Token| {
                token.expire();
                token
                    .may_stay()
                    .then(|| (key, TimerEntry::after(Duration::from_millis(1), token)))
            });
            check(keyed.is_empty(), "a new keyed timer has no key");
            let accepted = keyed.add(1, HOUR, quiet()).is_ok();
            site.accepts(accepted);
            check(keyed.cancel(&1).is_some() == accepted, "it has that key");
            site.add(Piece::Keyed(keyed));
        }
        _ => {
            let purgatory = Purgatory::new(timer);
            check(
                purgatory.stats() == purgatory::Stats::default(),
                "a new one has counted nothing",
            );
            let watch = purgatory.try_complete_else_watch(quiet(), HOUR, &[1]);
            site.accepts(watch.is_ok());
            if let Ok(Watch::Pending(pending)) = watch {
                check(purgatory.len() == 1, "one operation waits");
                check(
                    pending.cancel().into_operation().is_some(),
                    "it is returned",
                );
                check(purgatory.stats().cancelled == 1, "it counts");
            }
            site.add(Piece::Purgatory(purgatory));
        }
    }
}

fn use_handle(site: &Site, mut handle: Handle, random: &mut Rng) {
    let delay = delay(random);
    let acts = random.u64(..3) == 0;
    match &mut handle {
        Handle::Timeout(timeout) if acts => drop(timeout.cancel()),
        Handle::Timeout(timeout) => _ = timeout.touch(delay) || timeout.reschedule(delay),
        Handle::Series(series, cancelled) if acts => {
            let again = series.cancel() && cancelled.swap(true, SeqCst);
            check(!again, "one cancel of a series answers true");
        }
        Handle::Pending(pending) if acts => _ = pending.force_complete(),
        Handle::Pending(pending) => {
            let was_pending = pending.is_pending();
            check(
                !pending.touch(delay) || was_pending,
                "what has ended gets no time",
            );
        }
        Handle::Drive(drive) if acts && !site.strict => {
            let context = &mut Context::from_waker(Waker::noop());
            let ended = drive.as_mut().poll(context).is_ready();
            return site
                .handles
                .lock()
                .unwrap()
                .extend((!ended).then_some(handle));
        }
        Handle::Series(..) | Handle::Drive(_) | Handle::Listener(_) => {}
    }
    if random.u64(..4) == 0 {
        drop(handle);
    } else {
        site.handles.lock().unwrap().push(handle);
    }
}
