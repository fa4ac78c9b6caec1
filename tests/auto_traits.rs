//! Which threads may have what: checked by the compiler, so that a field cannot change it unseen.

use std::cell::Cell;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use tickwheel::{
    AddError, Batch, BuildError, Cancel, CancelOnDrop, Clock, Inline, Lateness, LevelSnapshot,
    LocalTimer, ManualClock, Snapshot, Stats, SystemClock, Task, Timeout, Timer, TimerBuilder,
    TimerEntry, TimerKey, When, Worker,
};

/// May be moved to another thread and may not be shared: what a task may be.
type SendOnly = Cell<u8>;
type NotSend = Rc<u8>;

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}
fn is_unpin<T: Unpin>() {}
fn is_unwind_safe<T: UnwindSafe>() {}
fn is_static<T: 'static>() {}
fn can_be_printed<T: std::fmt::Debug>() {}
fn is_error<T: std::error::Error + Send + 'static>() {}

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

macro_rules! shared_by_threads {
    ($($type:ty),* $(,)?) => {
        $(is_send::<$type>(); is_sync::<$type>(); is_unpin::<$type>(); can_be_printed::<$type>();)*
    };
}

#[test]
fn a_timer_and_its_handles_go_to_any_thread_if_the_tasks_may() {
    shared_by_threads!(
        Timer,
        Timer<SendOnly>,
        Timeout,
        Timeout<SendOnly>,
        CancelOnDrop,
        CancelOnDrop<SendOnly>,
        Worker<Task>,
        Worker<SendOnly>,
        Inline,
    );
    is_static::<Timer<SendOnly>>();
}

#[test]
fn clocks_and_statistics_go_to_any_thread() {
    shared_by_threads!(Clock, ManualClock, SystemClock, Stats, Lateness, Snapshot, LevelSnapshot);
    shared_by_threads!(BuildError, When, TimerKey, TimerEntry<u32>, AddError<u32>, Cancel<u32>);
}

#[test]
fn a_builder_and_an_entry_may_be_moved_to_another_thread() {
    is_send::<TimerBuilder>();
    is_send::<TimerBuilder<SendOnly>>();
    is_send::<TimerEntry>();
    is_send::<Task>();
    is_sync::<Task>();
    is_send::<Cancel<Task>>();
    is_send::<Batch<'_, SendOnly>>();
    is_unpin::<TimerBuilder<SendOnly>>();
    is_unpin::<TimerEntry<SendOnly>>();
    can_be_printed::<TimerBuilder>();
    can_be_printed::<Batch<'_, Task>>();
}

#[test]
fn a_local_timer_is_what_its_tasks_are() {
    is_send::<LocalTimer<SendOnly>>();
    is_sync::<LocalTimer<u32>>();
    is_unpin::<LocalTimer<NotSend>>();
    is_unwind_safe::<LocalTimer<u32>>();
    can_be_printed::<LocalTimer<NotSend>>();
}
assert_not_impl!(LocalTimer<NotSend>: Send);
assert_not_impl!(TimerEntry<NotSend>: Send);
assert_not_impl!(Timeout<NotSend>: Send);
assert_not_impl!(Timeout<NotSend>: Sync);
// Two handles of one timer could both have cancelled it.
assert_not_impl!(Timeout<u32>: Clone);
assert_not_impl!(CancelOnDrop<u32>: Clone);

#[test]
fn errors_are_errors_that_can_be_boxed_and_sent() {
    is_error::<AddError<u32>>();
    is_error::<AddError<Task>>();
    is_error::<BuildError>();
    is_sync::<BuildError>();
}

#[test]
fn what_holds_no_user_code_may_be_used_after_a_panic() {
    fn is_ref_unwind_safe<T: RefUnwindSafe + UnwindSafe>() {}
    is_ref_unwind_safe::<Stats>();
    is_ref_unwind_safe::<Snapshot>();
    is_ref_unwind_safe::<When>();
    is_ref_unwind_safe::<TimerKey>();
}

#[test]
fn a_handle_is_small() {
    assert_eq!(size_of::<Timeout<[u64; 8]>>(), 16, "as its documentation says");
}
