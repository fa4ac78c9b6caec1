//! How a node is set up and started.

use crate::due::{Due, Outcome};
use crate::durable::Durable;
use crate::error::Error;
use crate::node::options::Options;
use crate::store::Store;
use std::fmt;
use std::future::Future;
use std::time::Duration;
use tickwheel::Timer;

/// Something that opens a store when a node starts.
pub trait OpenStore: Send {
    /// The store.
    type Store: Store;

    /// Opens it: connects, and brings its tables up to date.
    fn open(self) -> impl Future<Output = Result<Self::Store, Error>> + Send;
}

impl<S: Store> OpenStore for S {
    type Store = S;

    async fn open(self) -> Result<S, Error> {
        Ok(self)
    }
}

/// Sets a node up. [`Durable`] makes it, for each kind of store.
pub struct DurableBuilder<O> {
    pub(crate) store: O,
    pub(crate) options: Options,
}

impl<O: OpenStore> DurableBuilder<O> {
    pub(crate) fn new(store: O) -> Self {
        DurableBuilder { store, options: Options::default() }
    }

    /// Sets how long a node may be silent before others take its timers over: 5 s by default, at
    /// least 100 ms. All nodes of a namespace should say the same. Timers of a node that has died
    /// are late by this and a sixth of it, and what loading takes.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.max(Duration::from_millis(100));
        self
    }

    /// Sets how far ahead timers are loaded into the wheel: a minute by default, at least 2 s.
    /// A longer one takes more memory, a shorter one more queries.
    pub fn window(mut self, window: Duration) -> Self {
        self.options.window = window.max(Duration::from_secs(2));
        self
    }

    /// Sets how many timers are claimed and not acknowledged, at most: 1,000 by default, at least
    /// one. As many run twice if the node dies.
    pub fn max_in_flight(mut self, max_in_flight: u32) -> Self {
        self.options.max_in_flight = max_in_flight.clamp(1, u32::MAX >> 4);
        self
    }

    /// Sets how many timers are loaded, at most: a million by default, at least one. What does not
    /// fit is found by a sweep when it is due, a second or two late.
    pub fn max_near(mut self, max_near: usize) -> Self {
        self.options.max_near = max_near.max(1);
        self
    }

    /// Sets after how many attempts a timer is given up: 20 by default, at least one. An attempt
    /// that ended in a crash of the process counts once the timer was in three: after those it runs
    /// alone, so that the crash is its own. It does so again, and is given up, only once the
    /// process has lived without it for twelve leases, and twice as long after each such crash, up
    /// to 192 leases: where the process goes down sooner it is not the timer.
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.options.max_attempts = max_attempts.max(1);
        self
    }

    /// Sets when a handler that panicked is called again: after a second by default, then after
    /// twice as long each time.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.options.retry_after = retry_after;
        self
    }

    /// Sets how many timers that are late by more than five seconds are claimed in a second, as
    /// after an outage: any number by default, at least one. Timers on time go first.
    pub fn catch_up_rate(mut self, per_second: u32) -> Self {
        self.options.catch_up_rate = per_second.max(1);
        self
    }

    /// Returns what will be opened, for those who want the bare store: tests and tools.
    pub fn store(self) -> O {
        self.store
    }

    /// Opens the store, joins the other nodes, and calls `handler` with each timer that is due.
    ///
    /// The handler runs on tasks of the tokio runtime that this is called on, up to
    /// [`max_in_flight`](Self::max_in_flight) at once, one at a time for each key. A panic of it is
    /// an attempt that failed. `timer` must be driven, by its own thread for example
    /// ([`start`](tickwheel::TimerBuilder::start)).
    ///
    /// # Errors
    /// What opening the store says. Afterwards the node repeats what fails.
    ///
    /// # Panics
    /// Outside of a tokio runtime, as `tokio::spawn` does.
    pub async fn start<T, H, F>(
        self,
        timer: &Timer<T>,
        handler: H,
    ) -> Result<Durable<O::Store>, Error>
    where
        T: Send + 'static,
        H: Fn(Due) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let store = self.store.open().await?;
        let handler = Box::new(move |due| Box::pin(handler(due)) as _);
        Durable::start(store, timer.closures(), self.options, handler).await
    }
}

impl<O> fmt::Debug for DurableBuilder<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}
