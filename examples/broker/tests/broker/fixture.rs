//! A broker in this process, on real sockets, whose time stands still until a test moves it.

use crate::client::Client;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Timer};
use tickwheel_broker::{Broker, Limits, LongPoll, Server, Terms, Waiting};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const NS: Duration = Duration::from_nanos(1);

pub(crate) struct Fixture {
    pub(crate) broker: Arc<Broker>,
    pub(crate) address: SocketAddr,
    pub(crate) http: SocketAddr,
    clock: ManualClock,
    timer: Timer,
    runtime: Runtime,
    end: Option<oneshot::Sender<()>>,
}

pub(crate) fn terms() -> Terms {
    Terms {
        partitions: 2,
        long_poll: LongPoll::Purgatory,
        initial_rebalance_delay: 100 * MS,
        follower_lag: Duration::ZERO,
        limits: Limits {
            max_connections: 100,
            max_frame: 1 << 20,
            max_memory: 8 << 20,
            max_message: 1 << 16,
            max_producers: 10,
            max_topics: 10,
            max_partition_bytes: 1 << 20,
            max_groups: 10,
            max_members: 10,
        },
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(&terms(), 10_000)
    }

    pub(crate) fn with(terms: &Terms, max_pending: usize) -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).max_pending(max_pending).build();
        let timer = timer.expect("a timer");
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_io().build().expect("a runtime");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = runtime.block_on(Server::bind(any, any, timer.clone(), terms));
        let server = server.expect("two ports");
        let (broker, address) = (Arc::clone(server.broker()), server.kafka_address());
        let http = server.http_address().expect("an address");
        let (end, ended) = oneshot::channel();
        runtime.spawn(server.run(async { drop(ended.await) }));
        Fixture { broker, address, http, clock, timer, runtime, end: Some(end) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Lets time pass.
    pub(crate) fn advance(&self, delay: Duration) {
        self.clock.advance(delay);
        self.timer.advance_clock(Duration::ZERO);
    }

    /// Waits until so much waits: until what clients have sent has arrived.
    pub(crate) fn wait_for(&self, waiting: Waiting) {
        eventually(
            || self.broker.waiting() == waiting,
            || format!("{:?} instead of {waiting:?}", self.broker.waiting()),
        );
    }

    /// Waits until no connection is left.
    pub(crate) fn wait_for_end_of_connections(&self) {
        eventually(
            || self.broker.connections() == 0,
            || format!("{} connections are left", self.broker.connections()),
        );
    }

    /// Waits until the timer's next turn is so far away as `holds` says.
    pub(crate) fn wait_for_next_turn(&self, holds: impl Fn(Duration) -> bool) {
        let next = || self.timer.next_expiration().map(|next| next - self.timer.now());
        eventually(|| next().is_some_and(&holds), || format!("{:?}", next()));
    }

    /// Ends the server, and gives it the time that it needs.
    pub(crate) fn shutdown(&mut self) {
        drop(self.end.take());
        self.wait_for(Waiting::default());
    }

    pub(crate) fn timers(&self) -> usize {
        self.timer.len()
    }

    /// Keeps a thread of the broker's busy.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        self.runtime.spawn(async { work() });
    }

    /// Returns how often the broker's threads have gone to sleep.
    pub(crate) fn polls(&self) -> u64 {
        let metrics = self.runtime.metrics();
        (0..metrics.num_workers()).map(|worker| metrics.worker_park_count(worker)).sum()
    }

    pub(crate) fn threads(&self) -> usize {
        self.runtime.metrics().num_workers()
    }
}

/// Fails only if something is wrong: no machine is so slow.
pub(crate) fn eventually(holds: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", otherwise());
        std::thread::sleep(MS);
    }
}
