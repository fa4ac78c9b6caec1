//! The base: what all clones of a timer share, and how each of them, and each future, owns it.

use crate::engine::driver::{Driver, Reaper};
use crate::engine::owner::{Owned, Owner};
use crate::engine::report;
use crate::sync::thread_number;
use crate::timer::entry::Task;
use crate::timer::executor::{Inline, handlers};
use crate::timer::tasks::Tasks;
use crossbeam_utils::CachePadded;
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// What the clones of a timer have in common, dropped with the last of them. The reaper refers only
/// to the driver, so it does not keep the timer alive.
pub(crate) struct Base {
    pub(crate) driver: Arc<Driver>,
    reaper: Option<Reaper>,
    /// Number and slots of the wheels of each owner that is a timer.
    pub(crate) layout: (usize, usize),
    /// The owner of closures and wakers: the timer's own shards if its tasks are of that type, and
    /// otherwise others, whose closures run in place.
    closures: Arc<Owned<Tasks<Task>>>,
}

impl Base {
    /// Creates the base of a timer with these tasks.
    pub(crate) fn new<T: Send + 'static>(
        driver: Arc<Driver>,
        reaper: Option<Reaper>,
        layout: (usize, usize),
        tasks: &Arc<Owned<Tasks<T>>>,
    ) -> Self {
        let own = (tasks as &dyn Any).downcast_ref::<Arc<Owned<Tasks<Task>>>>();
        let make = |first| Owned::new(&driver.context, handlers(Inline), layout, first);
        let closures = own.map_or_else(|| driver.register(make), Arc::clone);
        Base { driver, reaper, layout, closures }
    }

    #[inline]
    pub(crate) fn closures(&self) -> &Arc<Owned<Tasks<Task>>> {
        &self.closures
    }

    /// Drops the closures that are pending after a shutdown. So the futures among them wake, and
    /// learn of it.
    pub(crate) fn drop_closures(&self) {
        let dropped = self.closures.drop_pending();
        if dropped > 0 {
            report::debug!(
                timer = &*self.driver.context.name,
                tasks = dropped,
                "pending closures were dropped by a shutdown"
            );
        }
    }

    /// Ends the reaper and all waits; after this nothing can be added.
    pub(crate) fn stop(&self) {
        self.driver.context.stop();
        if let Some(reaper) = &self.reaper {
            reaper.join();
        }
        self.driver.close();
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base").field("name", &self.driver.context.name).finish_non_exhaustive()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.stop();
        // Handles may outlive the timer and keep its shards; they need not keep its tasks. Nor need
        // a future that drives it keep its executor.
        let dropped = self.driver.drop_pending();
        self.driver.retire();
        if dropped > 0 {
            report::warn!(
                timer = &*self.driver.context.name,
                tasks = dropped,
                "pending tasks were dropped with their timer"
            );
        }
    }
}

/// Shares in a base: what each clone of a timer owns, and takes for its futures.
///
/// A future owns its timer, so making and dropping one changes a count. If all changed the same
/// one, two threads that make futures would hardly be faster than one, because its line of the
/// cache can only be in one place at a time. So each pair of homes has a share of its own.
pub(crate) struct Shares(Box<[Share]>);

/// A share in the base of a timer, whose count has a cache line to itself.
#[derive(Clone)]
pub(crate) struct Share(Arc<CachePadded<Arc<Base>>>);

impl Shares {
    pub(crate) fn new(base: Arc<Base>) -> Arc<Self> {
        let (shards, _) = base.layout;
        let share = |_| Share(Arc::new(CachePadded::new(Arc::clone(&base))));
        Arc::new(Shares((0..shards.div_ceil(2)).map(share).collect()))
    }

    /// Returns a share for a future that the calling thread makes.
    #[inline]
    pub(crate) fn share(&self) -> Share {
        self.0[thread_number() as usize & (self.0.len() - 1)].clone()
    }
}

impl Deref for Shares {
    type Target = Arc<Base>;

    #[inline]
    fn deref(&self) -> &Arc<Base> {
        &self.0[0]
    }
}

impl Deref for Share {
    type Target = Arc<Base>;

    #[inline]
    fn deref(&self) -> &Arc<Base> {
        &self.0
    }
}

/// Shows the base.
impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
