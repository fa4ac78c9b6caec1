//! Which threads may have what, and what may be used after a panic: checked by the compiler, so
//! that a field cannot change it unseen. `tests/house.rs` sees to it that each item is here.

// A model checker's locks are not made to be used after a panic.
#![cfg(not(tickwheel_model))]

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use tickwheel::future::{Drive, Interval, Sleep, SleepError, Timed, TimedError};
use tickwheel::keyed::{Entry, KeyedTimer, OccupiedEntry, VacantEntry};
use tickwheel::lease::{self, Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::periodic::{MissedTick, Periodic, Run, Series};
use tickwheel::purgatory::{
    self, CancelPendingOnDrop, DelayedOperation, FutureOperation, Pending, Purgatory, Wait, Waited,
    Watch, WatchError,
};
use tickwheel::{
    AddError, Batch, BuildError, Cancel, CancelOnDrop, Clock, Executor, Inline, IntoExecuteResult,
    IntoTask, Lateness, LevelSnapshot, Listener, LocalTimer, ManualClock, Rejected, SharedClosure,
    Snapshot, Stats, SystemClock, Task, Timeout, Timer, TimerBuilder, TimerEntry, TimerKey,
    WeakTimer, When, Worker,
};

/// May be moved to another thread and may not be shared: what a task may be.
type SendOnly = Cell<u8>;
type NotSend = Rc<u8>;

/// A key that may be moved and not be shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key(PhantomData<SendOnly>);

/// An operation, or a store, that may be moved only, and is not to be seen after a panic.
#[derive(Debug)]
struct Own(SendOnly);

impl DelayedOperation for Own {
    fn try_complete(&mut self) -> bool {
        self.0.get() > 0
    }

    fn on_complete(&mut self) {}
}

fn is_send<T: ?Sized + Send>() {}
fn is_sync<T: ?Sized + Sync>() {}
fn is_unpin<T: Unpin>() {}
fn is_unwind_safe<T: UnwindSafe>() {}
fn is_ref_unwind_safe<T: RefUnwindSafe>() {}
fn is_static<T: 'static>() {}
fn can_be_printed<T: std::fmt::Debug>() {}
fn is_error<T: std::error::Error + Send + Sync + 'static>() {}

/// Fails to compile unless the type lacks the trait: with both impls `some_item` is ambiguous.
macro_rules! assert_not_impl {
    ($type:ty: $trait:ident) => {
        const _: fn() = || {
            trait AmbiguousIfImpl<A> {
                fn some_item() {}
            }
            impl<T: ?Sized> AmbiguousIfImpl<()> for T {}
            struct Invalid;
            impl<T: ?Sized + $trait> AmbiguousIfImpl<Invalid> for T {}
            let _ = <$type as AmbiguousIfImpl<_>>::some_item;
        };
    };
}

/// For any thread, shared or moved, and to be used after a panic.
macro_rules! unrestricted {
    ($($type:ty),* $(,)?) => {$(
        is_send::<$type>();
        is_sync::<$type>();
        is_unpin::<$type>();
        is_unwind_safe::<$type>();
        is_ref_unwind_safe::<$type>();
        can_be_printed::<$type>();
    )*};
}

#[test]
fn a_timer_and_its_handles_are_unrestricted_whatever_the_tasks() {
    unrestricted!(Timer, Timer<SendOnly>, WeakTimer, WeakTimer<SendOnly>);
    unrestricted!(Timeout, Timeout<SendOnly>, CancelOnDrop, CancelOnDrop<SendOnly>);
    unrestricted!(Worker<Task>, Worker<SendOnly>, Inline, Listener);
    is_static::<Timer<SendOnly>>();
}

#[test]
fn what_stands_on_a_timer_is_unrestricted_as_far_as_it_owns_nothing_of_a_user() {
    unrestricted!(KeyedTimer<u32>, KeyedTimer<Key, SendOnly>, Series, Run<'_>);
    unrestricted!(Purgatory<Key, Own>, Pending<Key, Own>, Watch<Key, Own>);
    unrestricted!(CancelPendingOnDrop<Key, Own>, Purgatory<u32, FutureOperation>, Wait<u32>);
    unrestricted!(Leases<Key>, Lease<u32>, Renewal<u32>, Sleep, Interval);
    unrestricted!(Timed<u32>, Drive<u32, u32>);
    // They hand their key out.
    is_send::<Lease<Key>>();
    is_unwind_safe::<Lease<Key>>();
    is_send::<Renewal<Key>>();
    is_unwind_safe::<Renewal<Key>>();
}
// A lock is released where it was taken.
assert_not_impl!(Entry<'_, u32, u32>: Send);
assert_not_impl!(OccupiedEntry<'_, u32, u32>: Send);
assert_not_impl!(VacantEntry<'_, u32, u32>: Send);
assert_not_impl!(Lease<Key>: Sync);
assert_not_impl!(Lease<Key>: RefUnwindSafe);
assert_not_impl!(Renewal<Key>: Sync);
assert_not_impl!(Renewal<Key>: RefUnwindSafe);

#[test]
fn clocks_options_statistics_and_answers_are_unrestricted() {
    unrestricted!(Clock, ManualClock, SystemClock, When, MissedTick, Periodic, LeaseTerms);
    unrestricted!(Stats, Lateness, Snapshot, LevelSnapshot, purgatory::Stats, lease::Stats);
    unrestricted!(TimerKey, TimerEntry<u32>, Waited, Cancel<u32>, purgatory::Cancel<u32>);
    unrestricted!(TimerBuilder, TimerBuilder<SendOnly>, Task, TimerEntry, Cancel<Task>);
    is_unpin::<TimerEntry<SendOnly>>();
    is_unpin::<Batch<'_, SendOnly>>();
    is_send::<Batch<'_, SendOnly>>();
    can_be_printed::<Batch<'_, Task>>();
    is_send::<SharedClosure>();
    is_sync::<SharedClosure>();
    is_send::<FutureOperation>();
    is_unpin::<FutureOperation>();
    can_be_printed::<FutureOperation>();
}
// It owns a condition of a user's.
assert_not_impl!(FutureOperation: Sync);
assert_not_impl!(FutureOperation: UnwindSafe);

#[test]
fn a_users_implementations_may_be_shared_if_they_must() {
    is_send::<dyn Executor<Task>>();
    is_sync::<dyn Executor<Task>>();
    is_send::<dyn LeaseStore<u32>>();
    is_sync::<dyn LeaseStore<u32>>();
    is_send::<dyn DelayedOperation>();
}
assert_not_impl!(dyn DelayedOperation: Sync);
assert_not_impl!(dyn IntoTask<Task>: Send);
assert_not_impl!(dyn IntoExecuteResult<Task>: Send);

#[test]
fn a_local_timer_is_what_its_tasks_are() {
    unrestricted!(LocalTimer<u32>);
    is_send::<LocalTimer<SendOnly>>();
    is_unpin::<LocalTimer<NotSend>>();
    can_be_printed::<LocalTimer<NotSend>>();
}
assert_not_impl!(LocalTimer<NotSend>: Send);
assert_not_impl!(LocalTimer<SendOnly>: Sync);
assert_not_impl!(LocalTimer<SendOnly>: RefUnwindSafe);
assert_not_impl!(TimerEntry<NotSend>: Send);
assert_not_impl!(Timeout<NotSend>: Send);
assert_not_impl!(Timeout<NotSend>: Sync);
// Two handles of one timer could both have cancelled it.
assert_not_impl!(Timeout<u32>: Clone);
assert_not_impl!(CancelOnDrop<u32>: Clone);

#[test]
fn errors_are_errors_that_can_be_boxed_and_sent() {
    is_error::<AddError<u32>>();
    is_error::<AddError<SendOnly>>();
    is_error::<AddError<Box<dyn FnOnce() + Send>>>();
    is_error::<BuildError>();
    is_error::<SleepError>();
    is_error::<TimedError>();
    is_error::<WatchError<u32>>();
    is_error::<WatchError<SendOnly>>();
    is_unwind_safe::<Rejected<SendOnly>>();
}

#[test]
fn a_handle_is_small() {
    assert_eq!(size_of::<Timeout<[u64; 8]>>(), 16, "as its documentation says");
}
