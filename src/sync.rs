//! The lock facade: the few primitives that the crate shares memory with.
//!
//! Every lock, condition variable and thread of the crate is taken from here, so that a
//! schedule-exploring model checker can drive the shipped code: with `--cfg tickwheel_model` they
//! are shuttle's, otherwise parking_lot's and std's. Such checkers do not model time-outs: there
//! [`Condvar::wait_until`] waits without end, and a wait that nobody ends is reported as the lost
//! wake-up that it is.

#[cfg(not(tickwheel_model))]
mod imp {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic;
    pub(crate) use std::{thread, thread_local};

    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    /// A small number of the calling thread: its first call takes the next one.
    #[inline]
    pub(crate) fn thread_number() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        thread_local! {
            static NUMBER: Cell<u32> = const { Cell::new(0) };
        }
        NUMBER.with(|number| {
            if number.get() == 0 {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
    }

    /// How many threads run at once.
    pub(crate) fn parallelism() -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    /// A condition variable; `notify_all` costs nothing while nobody waits.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.0.wait(guard);
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) {
            self.0.wait_until(guard, deadline);
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(tickwheel_model)]
mod imp {
    pub(crate) use shuttle::sync::atomic;
    pub(crate) use shuttle::{thread, thread_local};

    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::Instant;

    /// A small number of the calling thread: its place in the order of spawning.
    pub(crate) fn thread_number() -> u32 {
        usize::from(shuttle::current::me()) as u32
    }

    /// One: a model is the same on every machine.
    pub(crate) fn parallelism() -> usize {
        1
    }

    /// shuttle's mutex with parking_lot's face: no poisoning, also while a failed model unwinds.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// The guard sits in an option so that [`Condvar`] can move it out and back.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_deref().expect("the guard is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().expect("the guard is held")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("the guard is held");
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) {
            self.wait(guard);
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub(crate) use imp::*;
