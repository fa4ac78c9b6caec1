//! Delayed records measured: how late they come, from the time in their header to the consumer.

use super::client::Client;
use super::measure::{LONGEST, ms};
use super::plot;
use super::process::Process;
use crate::Failure;
use crate::options::Delays;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tickwheel_broker::{delayed, delivery_times};
use tokio::task::JoinSet;

const PARTITIONS: u32 = 4;
/// How many records are sent together.
const BATCH: usize = 500;
/// What there is between now and the first one's time: for sending all of them.
const AHEAD: Duration = Duration::from_secs(5);

/// Measures, and prints.
pub(crate) fn run(options: &Delays) -> Result<(), Failure> {
    let server = Process::start(&[format!("--partitions={PARTITIONS}")])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    let (lateness, early, cpu_percent) = runtime.block_on(measure(options, &server))?;
    runtime.shutdown_background();
    println!("{} records, due over {} s", options.records, options.seconds);
    println!();
    println!("| lateness p50 ms | p99 ms | max ms | too early | server CPU % |");
    println!("|---|---|---|---|---|");
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|quantile| ms(&lateness, quantile));
    println!("| {p50:.2} | {p99:.2} | {max:.2} | {early} | {cpu_percent:.1} |");
    if let Some(path) = &options.svg {
        let caption = format!("lateness of {} delayed records, ms", options.records);
        plot::draw(path, &caption, &[("delayed records".to_owned(), &lateness)])?;
    }
    if early > 0 {
        return Err(format!("{early} records came too early").into());
    }
    Ok(())
}

/// Measures the lateness in nanoseconds, how many were too early, and the server's share of a
/// processor.
async fn measure(
    options: &Delays,
    server: &Process,
) -> Result<(Histogram<u64>, usize, f64), Failure> {
    let mut producer = Client::connect(server.address).await?;
    producer.create_topic().await?;
    let count = options.records as usize;
    let first = (since_1970() + AHEAD).as_millis() as i64;
    let span = options.seconds as i64 * 1000;
    // Not in the order of their times: a stride that has no divisor in common with their number.
    let stride = (count / 2..).find(|stride| gcd(*stride, count) == 1).unwrap_or(1);
    let time = |number: usize| first + (number * stride % count) as i64 * span / count as i64;
    let times: Vec<i64> = (0..count).map(time).collect();
    let mut consumers = JoinSet::new();
    let chunks: Vec<&[i64]> = times.chunks(BATCH).collect();
    for partition in 0..PARTITIONS {
        let mine = chunks.iter().skip(partition as usize).step_by(PARTITIONS as usize);
        let wanted = mine.map(|chunk| chunk.len()).sum();
        let client = Client::connect(server.address).await?;
        consumers.spawn(consume(client, partition as i32, wanted));
    }
    for (number, chunk) in chunks.iter().enumerate() {
        let partition = (number % PARTITIONS as usize) as i32;
        producer.produce(partition, delayed(chunk, chunk[0], &[0; 100])).await?;
    }
    if since_1970().as_millis() as i64 >= first {
        return Err("not all of them were sent before the first was due".into());
    }
    let (cpu_before, since) = (server.cpu_seconds()?, Instant::now());
    let mut lateness = Histogram::new_with_bounds(1, LONGEST, 3)?;
    let mut early = 0;
    while let Some(consumed) = consumers.join_next().await {
        for nanos in consumed?? {
            match u64::try_from(nanos) {
                Ok(nanos) => lateness.saturating_record(nanos),
                Err(_) => early += 1,
            }
        }
    }
    let cpu = server.cpu_seconds()? - cpu_before;
    Ok((lateness, early, 100.0 * cpu / since.elapsed().as_secs_f64()))
}

/// Consumes records, and returns how late each one was, in nanoseconds.
async fn consume(mut client: Client, partition: i32, wanted: usize) -> Result<Vec<i64>, Failure> {
    let mut late = Vec::with_capacity(wanted);
    while late.len() < wanted {
        let (records, _) = client.fetch(partition, late.len() as i64, 60_000).await?;
        let now = since_1970().as_nanos() as i64;
        late.extend(delivery_times(&records).iter().map(|time| now - time * 1_000_000));
    }
    Ok(late)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
