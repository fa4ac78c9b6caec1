//! One way measured: from the moment before a produce is sent to the consumer's answer.

use super::client::Client;
use super::process::Process;
use crate::Failure;
use crate::options::Load;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_broker::Batch;
use tokio::task::JoinSet;

pub(super) struct Measured {
    /// Of one processor.
    pub(super) cpu_percent: f64,
    /// In nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

/// Returns a quantile in milliseconds.
pub(super) fn ms(latencies: &Histogram<u64>, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1e6
}

/// For how long everything runs before anything counts.
const WARM_UP: Duration = Duration::from_secs(2);

/// The longest latency that is told apart, in nanoseconds: a minute.
pub(super) const LONGEST: u64 = 60_000_000_000;

pub(super) fn measure(options: &Load, arguments: &[&str]) -> Result<Measured, Failure> {
    let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    arguments.push(format!("--partitions={}", options.partitions));
    arguments.push(format!("--max-connections={}", options.consumers + 10));
    let server = Process::start(&arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    let measured = runtime.block_on(measure_server(options, &server));
    runtime.shutdown_background();
    measured
}

async fn measure_server(options: &Load, server: &Process) -> Result<Measured, Failure> {
    let timer = Timer::builder().start()?;
    let ledger = Arc::new(Ledger { begun: Instant::now(), latencies: Mutex::default() });
    let mut producer = Client::connect(server.address).await?;
    producer.create_topic().await?;
    let mut tasks = JoinSet::new();
    for number in 0..options.consumers {
        let partition = (number % options.partitions) as i32;
        let client = Client::connect(server.address).await?;
        tasks.spawn(consume(client, partition, options.max_wait_ms, Arc::clone(&ledger)));
    }
    tasks.spawn(produce(producer, options.partitions, options.produces, timer.clone(), {
        Arc::clone(&ledger)
    }));
    timer.sleep(WARM_UP).await?;
    let (cpu_before, since) = (server.cpu_seconds()?, Instant::now());
    *ledger.latencies.lock() = Some(Histogram::new_with_bounds(1, LONGEST, 3)?);
    tokio::select! {
        slept = timer.sleep(Duration::from_secs(options.seconds)) => slept?,
        // None of them ends by itself.
        Some(ended) = tasks.join_next() => return Err(format!("{ended:?}").into()),
    }
    let latencies = ledger.latencies.lock().take().ok_or("nothing was measured")?;
    let cpu = server.cpu_seconds()? - cpu_before;
    Ok(Measured { cpu_percent: 100.0 * cpu / since.elapsed().as_secs_f64(), latencies })
}

/// What all clients share.
struct Ledger {
    begun: Instant,
    /// Nothing counts while there is none.
    latencies: Mutex<Option<Histogram<u64>>>,
}

impl Ledger {
    /// Returns the time as batches carry it: in nanoseconds.
    fn now(&self) -> i64 {
        self.begun.elapsed().as_nanos() as i64
    }

    fn record(&self, sent: i64) {
        if let Some(latencies) = &mut *self.latencies.lock() {
            latencies.saturating_record(u64::try_from(self.now() - sent).unwrap_or(0));
        }
    }
}

async fn consume(
    mut client: Client,
    partition: i32,
    max_wait_ms: i32,
    ledger: Arc<Ledger>,
) -> Result<(), Failure> {
    let mut offset = 0;
    loop {
        let (records, high_watermark) = client.fetch(partition, offset, max_wait_ms).await?;
        if let Some(sent) = Batch::timestamp(&records) {
            ledger.record(sent);
            offset = high_watermark;
        }
    }
}

async fn produce(
    mut client: Client,
    partitions: u32,
    rate: u32,
    timer: Timer,
    ledger: Arc<Ledger>,
) -> Result<(), Failure> {
    let mut beat = timer.interval(Duration::from_secs(1) / rate);
    for number in 0_u32.. {
        beat.tick().await?;
        let records = Batch::encode(1, ledger.now(), &[0; 100]);
        client.produce((number % partitions) as i32, records).await?;
    }
    Ok(())
}
