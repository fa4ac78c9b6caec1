//! Overload: ten times more produces than the server can take, and what becomes of others.

use super::client::{Client, produce_frame};
use super::measure::ms;
use super::probes::{Figures, PARTITIONS, Probes};
use super::process::Process;
use crate::Failure;
use crate::options::Load;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_broker::Batch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

/// How many times more than it can take.
const TIMES: f64 = 10.0;
/// How many bytes each produce has.
const SIZE: usize = 64 << 10;
/// Over how many connections the load comes; and how many of them measure what can be done, each
/// with one produce after the other.
const CONNECTIONS: u32 = 200;
const STEADY: u32 = 16;
/// The partitions that the load is written to.
const LOADED: i32 = 6;
/// The server's budget, and what its logs may have together, in mebibytes.
const BUDGET_MIB: u64 = 32;
const LOGS_MIB: u64 = 4 * (PARTITIONS + LOADED) as u64;
/// What it may take beside, mostly what the allocator keeps.
const BESIDE_MIB: u64 = 128;
/// By then it must be as fast as before.
const RECOVERY: Duration = Duration::from_secs(10);

/// What one phase has shown.
struct Phase {
    name: &'static str,
    offered: f64,
    answered: f64,
    probes: Figures,
    memory_mib: u64,
}

/// Measures, prints, and fails if what must hold in any case does not.
pub(super) fn run(options: &Load) -> Result<(), Failure> {
    let server = Process::start(&[
        format!("--partitions={}", PARTITIONS + LOADED),
        format!("--max-memory={}", BUDGET_MIB << 20),
        "--max-partition=4194304".to_owned(),
    ])?;
    // The probes must not wait for the load that is made here.
    let [runtime, crowd] = [0, 1].map(|_| Builder::new_multi_thread().enable_io().build());
    let (runtime, crowd) = (runtime?, crowd?);
    let length = Duration::from_secs(options.seconds);
    let (phases, recovered) = runtime.block_on(phases(&server, length, crowd.handle().clone()))?;
    runtime.shutdown_background();
    crowd.shutdown_background();
    println!("{CONNECTIONS} connections, {} KiB each produce, {length:?} each", SIZE >> 10);
    println!();
    println!("{}", table(&phases));
    println!("as fast as before {:.1} ms after the load", recovered.as_secs_f64() * 1e3);
    for Phase { name, probes, memory_mib, .. } in &phases {
        let Figures { early, lost, .. } = probes;
        if (*early, *lost) != (0, 0) {
            return Err(format!("{name}: {early} fetches too early, {lost} sessions lost").into());
        }
        if *memory_mib > BUDGET_MIB + LOGS_MIB + BESIDE_MIB {
            return Err(format!("{name}: {memory_mib} MiB").into());
        }
    }
    Ok(())
}

async fn phases(
    server: &Process,
    length: Duration,
    crowd: Handle,
) -> Result<([Phase; 3], Duration), Failure> {
    let timer = Timer::builder().start()?;
    Client::connect(server.address).await?.create_topic().await?;
    let capacity = {
        let flood = Flood::start(server, STEADY, &timer, None, &crowd).await?;
        timer.sleep(length).await?;
        flood.answered() as f64 / length.as_secs_f64()
    };
    let mut probes = Probes::start(server.address, &timer).await?;
    let before = calm("before", server, &mut probes, &timer, length).await?;
    let offered = TIMES * capacity;
    let every = Duration::from_secs_f64(f64::from(CONNECTIONS) / offered);
    let flood = Flood::start(server, CONNECTIONS, &timer, Some(every), &crowd).await?;
    probes.take()?;
    let mut memory_mib = 0;
    let begun = Instant::now();
    while begun.elapsed() < length {
        timer.sleep(Duration::from_millis(50)).await?;
        memory_mib = memory_mib.max(server.resident_mib()?);
    }
    let answered = flood.answered() as f64 / length.as_secs_f64();
    let name = "ten times too much";
    let during = Phase { name, offered, answered, probes: probes.take()?, memory_mib };

    drop(flood);
    let stopped = Instant::now();
    let usual = before.probes.delivery.value_at_quantile(0.99);
    while probes.best_delivery().is_none_or(|best| best > usual) {
        timer.sleep(Duration::from_millis(1)).await?;
        if stopped.elapsed() > RECOVERY {
            return Err(format!("not as fast as before after {RECOVERY:?}").into());
        }
    }
    let recovered = stopped.elapsed();
    let after = calm("after", server, &mut probes, &timer, length).await?;
    Ok(([before, during, after], recovered))
}

/// Measures how it is while nobody offers too much, beginning a second from now.
async fn calm(
    name: &'static str,
    server: &Process,
    probes: &mut Probes,
    timer: &Timer,
    length: Duration,
) -> Result<Phase, Failure> {
    timer.sleep(Duration::from_secs(1)).await?;
    probes.take()?;
    timer.sleep(length).await?;
    let memory_mib = server.resident_mib()?;
    Ok(Phase { name, offered: 0.0, answered: 0.0, probes: probes.take()?, memory_mib })
}

/// Produces over many connections. Ends when it is dropped.
struct Flood {
    answered: Arc<AtomicU64>,
    _tasks: JoinSet<Result<(), Failure>>,
}

impl Flood {
    /// Each connection has one after the other; or one at each beat, answered or not, as far as
    /// the server reads.
    async fn start(
        server: &Process,
        connections: u32,
        timer: &Timer,
        every: Option<Duration>,
        crowd: &Handle,
    ) -> Result<Self, Failure> {
        let answered = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..connections {
            let partition = PARTITIONS + number as i32 % LOADED;
            let frame = produce_frame(partition, Batch::encode(1, 0, &[0; SIZE]))?;
            let stream = Client::connect(server.address).await?.into_stream();
            let (timer, answered) = (timer.clone(), Arc::clone(&answered));
            let flood = async move {
                match every {
                    None => one_after_the_other(stream, &frame, &answered).await,
                    Some(every) => at_each_beat(stream, &frame, &answered, &timer, every).await,
                }
            };
            tasks.spawn_on(flood, crowd);
        }
        Ok(Flood { answered, _tasks: tasks })
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

async fn one_after_the_other(
    mut stream: TcpStream,
    frame: &Bytes,
    answered: &AtomicU64,
) -> Result<(), Failure> {
    loop {
        stream.write_all(frame).await?;
        skip_answer(&mut stream).await?;
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

async fn at_each_beat(
    stream: TcpStream,
    frame: &Bytes,
    answered: &AtomicU64,
    timer: &Timer,
    every: Duration,
) -> Result<(), Failure> {
    let (mut reader, mut writer) = stream.into_split();
    let mut beat = timer.interval(every);
    let send = async {
        loop {
            beat.tick().await?;
            writer.write_all(frame).await?;
        }
    };
    let receive = async {
        loop {
            skip_answer(&mut reader).await?;
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    tokio::select! {
        sent = send => sent,
        received = receive => received,
    }
}

async fn skip_answer(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<(), Failure> {
    let length = stream.read_u32().await?;
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await?;
    Ok(())
}

fn table(phases: &[Phase]) -> String {
    let mut text = "| | offered /s | answered /s | small produce to its consumer p50, p99, max ms \
        | empty fetch late p99 ms | heartbeat p99, max ms | too early, lost | memory MiB |\n\
        |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for Phase { name, offered, answered, probes, memory_mib } in phases {
        let Figures { delivery, empty, early, heartbeat, lost } = probes;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|quantile| ms(delivery, quantile));
        let (late, beat, worst) = (ms(empty, 0.99), ms(heartbeat, 0.99), ms(heartbeat, 1.0));
        text += &format!(
            "| {name} | {offered:.0} | {answered:.0} | {p50:.1}, {p99:.1}, {max:.1} | {late:.1} \
             | {beat:.1}, {worst:.1} | {early}, {lost} | {memory_mib} |\n"
        );
    }
    text
}
