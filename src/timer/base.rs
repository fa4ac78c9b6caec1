//! The base: the part that a timer shares with everything built on it, whatever its tasks are.

use crate::sync::Mutex;
use crate::timer::dispatcher::Dispatcher;
use crate::timer::driver::Driver;
use crate::timer::entry::Task;
use crate::timer::executor::Inline;
use crate::timer::owner::{Owned, Owner};
use crate::timer::reaper::Reaper;
use crate::timer::report;
use crate::timer::tasks::Tasks;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The base is dropped with the last of them. The reaper refers only to the driver, so it does not
/// keep the timer alive.
pub(crate) struct Base {
    pub(crate) driver: Arc<Driver>,
    reaper: Option<Reaper>,
    /// Number and slots of the wheels of each owner that is a timer.
    layout: (usize, usize),
    /// The place for closures and wakers: the timer's own shards if its tasks are of that type;
    /// otherwise others, made when they are first wanted. Each new future reads it without a lock.
    closures: OnceLock<Arc<Owned<Tasks<Task>>>>,
    /// Held by a thread that makes those: in models no thread must wait for a `OnceLock`.
    making: Mutex<()>,
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
        let closures = own.map_or_else(OnceLock::new, |own| OnceLock::from(Arc::clone(own)));
        Base { driver, reaper, layout, closures, making: Mutex::new(()) }
    }

    /// Returns the owner of closures and wakers, which run in place unless they are the timer's own
    /// tasks.
    #[inline]
    pub(crate) fn closures(&self) -> &Arc<Owned<Tasks<Task>>> {
        self.closures.get().unwrap_or_else(|| self.make_closures())
    }

    #[cold]
    fn make_closures(&self) -> &Arc<Owned<Tasks<Task>>> {
        let _making = self.making.lock();
        self.closures.get_or_init(|| {
            let context = &self.driver.context;
            let dispatcher = Dispatcher::new(Box::new(Inline));
            self.driver.register(|first| Owned::new(context, dispatcher, self.layout, first))
        })
    }

    /// Drops the closures that are pending after a shutdown. So the futures among them wake, and
    /// learn of it, and the leases are lost.
    pub(crate) fn drop_closures(&self) {
        let dropped = self.closures.get().map_or(0, |closures| closures.drop_pending());
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
        self.driver.stop();
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
        // a future that drives it keep its executor and its hook.
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
