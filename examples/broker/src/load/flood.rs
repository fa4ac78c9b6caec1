//! A flood of produces over many connections.

use super::client::{Client, produce_frame};
use super::probes::PARTITIONS;
use super::process::Process;
use crate::Failure;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_broker::Batch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// How many bytes each produce has.
pub(super) const SIZE: usize = 64 << 10;
/// The partitions that it is written to, behind those of the probes.
pub(super) const LOADED: i32 = 6;

/// Produces over many connections. Ends when it is dropped.
pub(super) struct Flood {
    answered: Arc<AtomicU64>,
    _tasks: JoinSet<Result<(), Failure>>,
}

impl Flood {
    /// Each connection has one after the other; or one at each beat, answered or not, as far as
    /// the server reads.
    pub(super) async fn start(
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

    pub(super) fn answered(&self) -> u64 {
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
