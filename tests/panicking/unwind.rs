//! Panics in the midst of calls, under a `catch_unwind` that needs no `AssertUnwindSafe`.

use crate::{MS, by_hand, no_report_succeeds};
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

/// A key that cannot be compared, or hashed, or cloned, while it is told so.
#[derive(Debug)]
struct Key(u32, Arc<AtomicU8>);

const SOUND: u8 = 0;
const EQ: u8 = 1;
const HASH: u8 = 2;
const CLONE: u8 = 3;

impl Key {
    fn called(&self, call: u8) {
        assert!(
            self.1.load(Ordering::Relaxed) != call,
            "in the midst of a call"
        );
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.called(EQ);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.called(HASH);
        self.0.hash(state);
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        self.called(CLONE);
        Key(self.0, Arc::clone(&self.1))
    }
}

/// An operation that panics as it completes.
struct Panics;

impl DelayedOperation for Panics {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {
        panic!("as it completes");
    }
}

#[test]
fn keyed_timers_go_on_after_a_key_has_panicked_in_the_midst_of_each_call() {
    no_report_succeeds();
    let (timer, clock) = by_hand();
    let keyed: KeyedTimer<Key, u32> = KeyedTimer::new(&timer, |_, _| -> () { panic!("an expiry") });
    let broken = Arc::new(AtomicU8::new(SOUND));
    let key = Key(1, Arc::clone(&broken));
    let copy = || Key(1, Arc::clone(&broken));
    keyed.add(copy(), MS, 1_u32).unwrap();
    for call in [EQ, HASH] {
        broken.store(call, Ordering::Relaxed);
        assert!(catch_unwind(|| keyed.add(copy(), MS, 1_u32).is_ok()).is_err());
        assert!(catch_unwind(|| drop(keyed.entry(copy()))).is_err());
        assert!(catch_unwind(|| keyed.touch(&key, MS)).is_err());
        assert!(catch_unwind(|| keyed.reschedule(&key, MS)).is_err());
        assert!(catch_unwind(|| keyed.deadline(&key)).is_err());
        assert!(catch_unwind(|| keyed.cancel(&key)).is_err());
    }
    broken.store(SOUND, Ordering::Relaxed);
    keyed.assert_invariants();
    timer.assert_invariants();
    assert_eq!((keyed.len(), timer.len()), (1, 1));
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert!(keyed.is_empty() && timer.stats().panicked == 1);
}

#[test]
fn a_purgatory_goes_on_after_a_key_and_an_operation_have_panicked() {
    no_report_succeeds();
    let (timer, _clock) = by_hand();
    let purgatory: Purgatory<Key, Panics> = Purgatory::new(&timer);
    let broken = Arc::new(AtomicU8::new(SOUND));
    let [key, other] = [1, 2].map(|key| [Key(key, Arc::clone(&broken))]);
    let watch = |key| purgatory.try_complete_else_watch(Panics, MS, key).unwrap();
    let pending = watch(&key).pending().expect("it waits");
    for call in [EQ, HASH] {
        broken.store(call, Ordering::Relaxed);
        assert!(catch_unwind(|| watch(&key).is_completed()).is_err());
        assert!(catch_unwind(|| purgatory.check_and_complete(&key[0])).is_err());
        assert!(catch_unwind(|| purgatory.cancel_for_key(&key[0]).len()).is_err());
    }
    broken.store(CLONE, Ordering::Relaxed); // Only of a key on which nothing was watched.
    assert!(catch_unwind(|| watch(&other).is_completed()).is_err());
    broken.store(SOUND, Ordering::Relaxed);
    purgatory.assert_invariants();
    assert_eq!((purgatory.len(), timer.len()), (1, 1));
    assert_eq!(catch_unwind(|| pending.force_complete()).ok(), Some(true));
    assert_eq!(
        (purgatory.len(), timer.len(), purgatory.stats().panicked),
        (0, 0, 1)
    );
    purgatory.assert_invariants();
}

/// Uses a timer as it is dropped, once it is armed; then it cannot be compared either.
struct User(Arc<AtomicU8>, Arc<OnceLock<Box<Uses>>>);

type Uses = dyn Fn() -> usize + Send + Sync + UnwindSafe + RefUnwindSafe;

impl User {
    fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == EQ
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if self.is_armed() {
            self.1.get().map(|uses| uses());
        }
    }
}

impl Clone for User {
    fn clone(&self) -> Self {
        User(Arc::clone(&self.0), Arc::clone(&self.1))
    }
}

impl PartialEq for User {
    fn eq(&self, _: &User) -> bool {
        assert!(!self.is_armed(), "in the midst of a call");
        true
    }
}

impl Eq for User {}

impl std::hash::Hash for User {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// Seen to fail: what a call of a keyed timer had been given was dropped under its lock as the
/// key's `Eq` panicked, and a drop that used it hung.
#[test]
fn what_a_call_was_given_is_dropped_without_a_lock() {
    let (timer, _clock) = by_hand();
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let user = || User(Arc::new(AtomicU8::new(SOUND)), Arc::default());
        let key = user();
        let task = user();
        let keyed = KeyedTimer::new(&timer, |_: User, _: User| ());
        for used in [&key, &task] {
            let keyed = keyed.clone();
            assert!(used.1.set(Box::new(move || keyed.len())).is_ok());
        }
        assert!(
            keyed
                .add(key.clone(), MS, task.clone())
                .is_ok_and(|former| former.is_none())
        );
        [&key, &task]
            .iter()
            .for_each(|user| user.0.store(EQ, Ordering::Relaxed));
        assert!(catch_unwind(|| keyed.add(key.clone(), MS, task.clone()).is_ok()).is_err());
        [&key, &task]
            .iter()
            .for_each(|user| user.0.store(SOUND, Ordering::Relaxed));
        assert_eq!(keyed.len(), 1);
        done.send(()).unwrap();
    });
    assert!(
        is_done.recv_timeout(Duration::from_secs(20)).is_ok(),
        "a call hangs, or panicked"
    );
}
