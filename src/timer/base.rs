//! The base: the part that a timer shares with everything built on it, whatever its tasks are.

use crate::sync::Mutex;
use crate::timer::dispatcher::Dispatcher;
use crate::timer::driver::Driver;
use crate::timer::entry::Task;
use crate::timer::executor::Inline;
use crate::timer::reaper::Reaper;
use crate::timer::report;
use crate::timer::shards::Shards;
use std::sync::Arc;

/// The base is dropped with the last of them. The reaper refers only to the driver, so it does not
/// keep the timer alive.
pub(crate) struct Base {
    pub(crate) driver: Arc<Driver>,
    reaper: Option<Reaper>,
    /// Number and slots of the wheels of each owner that is a timer.
    layout: (usize, usize),
    /// The place for closures and wakers, in a timer whose own tasks are of another type.
    closures: Mutex<Option<Arc<Shards<Task>>>>,
}

impl Base {
    pub(crate) fn new(driver: Arc<Driver>, reaper: Option<Reaper>, layout: (usize, usize)) -> Self {
        Base { driver, reaper, layout, closures: Mutex::new(None) }
    }

    /// Returns the shards for closures and wakers, which run in place.
    pub(crate) fn closures(&self) -> Arc<Shards<Task>> {
        let mut closures = self.closures.lock();
        let made = closures.get_or_insert_with(|| {
            let context = Arc::clone(&self.driver.context);
            let dispatcher = Dispatcher::new(&context.name, Box::new(Inline), None);
            self.driver
                .register(|first| Arc::new(Shards::new(context, dispatcher, self.layout, first)))
        });
        Arc::clone(made)
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

impl Drop for Base {
    fn drop(&mut self) {
        self.stop();
        // Handles may outlive the timer and keep its shards; they need not keep its tasks.
        let dropped = self.driver.drop_pending();
        if dropped > 0 {
            report::warn!(
                timer = &*self.driver.context.name,
                tasks = dropped,
                "pending tasks were dropped with their timer"
            );
        }
    }
}
