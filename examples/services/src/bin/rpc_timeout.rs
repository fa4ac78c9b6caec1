//! Calls to quick, slow, silent and dead servers over TCP: each ends exactly once, and in time.
//!
//! ```text
//! cargo run -p tickwheel-services --bin rpc_timeout
//! cargo run -p tickwheel-services --bin rpc_timeout -- --check
//! ```
//!
//! Callers call as fast as they can; of 100 calls one is never answered, one is answered too late,
//! and one is cancelled. Then the server dies. The exit status is 1 if a call ended twice, never,
//! too early or without a reason, or if anything was left over.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::future::TimedError;
use tickwheel_services::rpc::{CallError, Client, encode, read_frame};
use tickwheel_services::{PATIENCE, Timeline, happens, is_check};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How long a call may take.
const LIMIT: Duration = Duration::from_millis(300);

/// What has become of how many calls and responses.
#[derive(Clone, Default)]
struct Tally(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Tally {
    fn count(&self, what: &'static str) {
        *self.0.lock().entry(what).or_default() += 1;
    }

    fn of(&self, what: &str) -> u64 {
        self.0.lock().get(what).copied().unwrap_or_default()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (callers, seconds) = if is_check()? { (100, 1) } else { (1000, 10) };
    let timer = Timer::builder().start()?;
    let timeline = Timeline::begin();
    let tally = Tally::default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_io()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let counted = tally.clone();
    let on_late = move |_| counted.count("responses late");
    let client = Client::connect(listener.local_addr()?, &timer, on_late);
    let client = Arc::new(runtime.block_on(client)?);
    let mut serving = JoinSet::new();
    serving.spawn_on(
        serve(listener, timer.clone(), tally.clone()),
        runtime.handle(),
    );

    // Numbers that are a stride of 100 apart are calls of one kind.
    let begin = |callers: u64, stride: u64, limit: Duration, end: Instant| {
        let mut calling = JoinSet::new();
        for caller in 0..callers {
            let timer = timer.clone();
            let client = Arc::clone(&client);
            let tally = tally.clone();
            let calls = async move {
                for number in caller * stride.. {
                    call(&timer, &client, &tally, number, limit).await;
                    if Instant::now() >= end {
                        break;
                    }
                }
            };
            calling.spawn_on(calls, runtime.handle());
        }
        calling
    };
    timeline.say(format!("{callers} callers begin"));
    let lasts = Duration::from_secs(seconds);
    let calling = begin(callers, 1, LIMIT, Instant::now() + lasts);
    runtime.block_on(timer.timeout(lasts + PATIENCE, calling.join_all()))?;
    let is_settled =
        happens(|| tally.of("answered") + tally.of("responses late") == tally.of("responses"));
    timeline.say(format!("{:?}", tally.0.lock()));

    let calling = begin(1000, 100, 10 * PATIENCE, Instant::now());
    let are_waiting = happens(|| client.outstanding() == 1000);
    timeline.say("1000 calls wait for a response, and the server dies");
    drop(serving);
    runtime.block_on(timer.timeout(PATIENCE, calling.join_all()))?;
    let is_empty = happens(|| client.outstanding() == 0 && timer.is_empty());
    timeline.say(format!(
        "{:?}, {} timers are left",
        tally.0.lock(),
        timer.len()
    ));
    let ends = ["answered", "timed out", "cancelled", "closed"].map(|end| tally.of(end));
    let is_once = ends.iter().sum::<u64>() == tally.of("called") && tally.of("wrong") == 0;
    let is_right = is_settled && are_waiting && is_empty && is_once && ends[3] == 1000;
    if is_right {
        Ok(())
    } else {
        Err("calls ended twice, never, or without a reason".into())
    }
}

/// Makes one call and records its outcome.
async fn call(timer: &Timer, client: &Client, tally: &Tally, number: u64, limit: Duration) {
    tally.count("called");
    // How long the server takes, in milliseconds.
    let takes = match number % 100 {
        0 => u32::MAX,
        1 | 2 => 2 * limit.as_millis() as u32,
        _ => 0,
    };
    let start = Instant::now();
    let request = takes.to_be_bytes();
    let call = client.call(&request, limit);
    let outcome = if number % 100 == 2 {
        timer.timeout(limit / 3, call).await
    } else {
        Ok(call.await)
    };
    tally.count(match outcome {
        Ok(Ok(_)) => "answered",
        Ok(Err(CallError::Timeout { .. })) if start.elapsed() >= limit => "timed out",
        Ok(Err(CallError::Closed { .. })) => "closed",
        Err(TimedError::Elapsed) => "cancelled",
        _ => "wrong",
    });
}

/// Serves one client. Takes as long for a request as the request says; dropped, it is dead.
async fn serve(listener: TcpListener, timer: Timer, tally: Tally) -> io::Result<()> {
    let (mut reader, writer) = listener.accept().await?.0.into_split();
    let writer = Arc::new(tokio::sync::Mutex::new(writer));
    let mut handlers = JoinSet::new();
    loop {
        let (id, body) = read_frame(&mut reader).await?;
        let takes = u32::from_be_bytes(body.try_into().unwrap_or_default());
        if takes < u32::MAX {
            tally.count("responses");
            let timer = timer.clone();
            let writer = Arc::clone(&writer);
            handlers.spawn(async move {
                let _ = timer.sleep(Duration::from_millis(takes.into())).await;
                writer.lock().await.write_all(&encode(id, b"done")).await
            });
        }
        while handlers.try_join_next().is_some() {}
    }
}
