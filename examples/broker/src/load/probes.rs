//! Probes: a few small clients, and how they are served while others ask for too much.

use super::client::Client;
use super::measure::LONGEST;
use crate::Failure;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_broker::Batch;
use tokio::task::JoinSet;

/// The partitions that the probes have for themselves: small records, and none at all.
const SMALL: i32 = 0;
const EMPTY: i32 = 1;
pub(super) const PARTITIONS: i32 = 2;

/// How often there is a small produce, and a heartbeat.
const PRODUCE_EVERY: Duration = Duration::from_millis(20);
const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
const SESSION_MS: i32 = 10_000;
const MAX_WAIT: Duration = Duration::from_millis(500);

/// What the probes have seen. Times are in nanoseconds.
pub(super) struct Figures {
    /// From before a small produce until its consumer has it.
    pub(super) delivery: Histogram<u64>,
    /// How late an empty fetch is answered.
    pub(super) empty: Histogram<u64>,
    /// How many of them were answered before their time.
    pub(super) early: u64,
    pub(super) heartbeat: Histogram<u64>,
    /// How often its session was over though it went on.
    pub(super) lost: u64,
}

impl Figures {
    fn new() -> Result<Self, Failure> {
        let none = || Histogram::new_with_bounds(1, LONGEST, 3);
        Ok(Figures { delivery: none()?, empty: none()?, early: 0, heartbeat: none()?, lost: 0 })
    }
}

pub(super) struct Probes {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<(), Failure>>,
}

struct Shared {
    begun: Instant,
    figures: Mutex<Figures>,
}

impl Probes {
    pub(super) async fn start(address: SocketAddr, timer: &Timer) -> Result<Self, Failure> {
        let figures = Mutex::new(Figures::new()?);
        let shared = Arc::new(Shared { begun: Instant::now(), figures });
        let mut tasks = JoinSet::new();
        let client = || Client::connect(address);
        tasks.spawn(consume(client().await?, Arc::clone(&shared)));
        tasks.spawn(produce(client().await?, timer.clone(), Arc::clone(&shared)));
        tasks.spawn(wait_for_nothing(client().await?, Arc::clone(&shared)));
        tasks.spawn(heartbeat(client().await?, timer.clone(), Arc::clone(&shared)));
        Ok(Probes { shared, tasks })
    }

    /// Takes what was seen since the last time.
    pub(super) fn take(&mut self) -> Result<Figures, Failure> {
        if let Some(ended) = self.tasks.try_join_next() {
            return Err(format!("a probe has ended: {ended:?}").into());
        }
        Ok(std::mem::replace(&mut *self.shared.figures.lock(), Figures::new()?))
    }

    /// Returns the shortest delivery since the last take, if there was one.
    pub(super) fn best_delivery(&self) -> Option<u64> {
        let figures = self.shared.figures.lock();
        (!figures.delivery.is_empty()).then(|| figures.delivery.min())
    }
}

async fn consume(mut client: Client, shared: Arc<Shared>) -> Result<(), Failure> {
    let mut offset = 0;
    loop {
        let (records, high_watermark) = client.fetch(SMALL, offset, 60_000).await?;
        if let Some(sent) = Batch::timestamp(&records) {
            let nanos = shared.begun.elapsed().as_nanos() as i64 - sent;
            shared.figures.lock().delivery.saturating_record(nanos.unsigned_abs());
            offset = high_watermark;
        }
    }
}

async fn produce(mut client: Client, timer: Timer, shared: Arc<Shared>) -> Result<(), Failure> {
    loop {
        let now = shared.begun.elapsed().as_nanos() as i64;
        client.produce(SMALL, Batch::encode(1, now, &[0; 100])).await?;
        timer.sleep(PRODUCE_EVERY).await?;
    }
}

async fn wait_for_nothing(mut client: Client, shared: Arc<Shared>) -> Result<(), Failure> {
    loop {
        let begun = Instant::now();
        client.fetch(EMPTY, 0, MAX_WAIT.as_millis() as i32).await?;
        let took = begun.elapsed();
        let mut figures = shared.figures.lock();
        match took.checked_sub(MAX_WAIT) {
            Some(late) => figures.empty.saturating_record(late.as_nanos() as u64),
            None => figures.early += 1,
        }
    }
}

async fn heartbeat(mut client: Client, timer: Timer, shared: Arc<Shared>) -> Result<(), Failure> {
    let mut alive = client.join(SESSION_MS).await?;
    loop {
        let begun = Instant::now();
        let code = client.heartbeat(alive.clone()).await?;
        let nanos = begun.elapsed().as_nanos() as u64;
        shared.figures.lock().heartbeat.saturating_record(nanos);
        if code != 0 {
            shared.figures.lock().lost += 1;
            alive = client.join(SESSION_MS).await?;
        }
        timer.sleep(HEARTBEAT_EVERY).await?;
    }
}
