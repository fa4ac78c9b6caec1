//! Each way in which a call ends, one after the other.

use crate::require;
use crate::servers::{Server, Work, listen};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::future::TimedError;
use tickwheel_services::rpc::{CallError, Client, read_frame};
use tickwheel_services::timeline::Timeline;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

/// How long a call may take here: so long that a busy machine has sent it by then.
const LIMIT: Duration = Duration::from_secs(1);
/// What has not happened by then will not happen.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn play(timer: &Timer, timeline: &Timeline) -> Result<(), Box<dyn Error>> {
    one_by_one(timer, timeline).await?;
    stuck_server(timer, timeline).await?;
    dead_server(timer, timeline).await
}

/// Shows calls that are answered, timed out and cancelled, and responses that come too late.
async fn one_by_one(timer: &Timer, timeline: &Timeline) -> Result<(), Box<dyn Error>> {
    let server = Server::start(timer).await?;
    let (on_late, mut late) = unbounded_channel();
    let client = Client::connect(server.address, timer, move |id| _ = on_late.send(id)).await?;

    let outcome = client.call(&Work::Takes(Duration::ZERO).request(), PATIENCE).await;
    timeline.say(format!("call 0, of a quick server: {}", told(&outcome)));
    require(outcome.is_ok(), "call 0 must be answered")?;

    let start = Instant::now();
    let slow = Work::Takes(2 * LIMIT).request();
    let outcome = client.call(&slow, LIMIT).await;
    timeline.say(format!("call 1, of a slow server: {}", told(&outcome)));
    require(start.elapsed() >= LIMIT, "call 1 timed out too early")?;
    require(
        outcome == Err(CallError::Timeout { sent: true }),
        "call 1 must time out after it was sent",
    )?;
    let id = timer.timeout(PATIENCE, late.recv()).await?;
    timeline.say("the response to call 1 came late");
    require(id == Some(1), "another response came late, or none")?;

    let cancelled = timer.timeout(LIMIT, client.call(&slow, PATIENCE)).await;
    timeline.say("call 2, of a slow server: cancelled");
    require(cancelled == Err(TimedError::Elapsed), "call 2 must be cancelled")?;
    require(client.outstanding() == 0, "call 2 is still outstanding")?;
    let id = timer.timeout(PATIENCE, late.recv()).await?;
    timeline.say("the response to call 2 came late");
    require(id == Some(2), "another response came late, or none")
}

/// Shows a server that accepts and does not read. Calls that were sent are distinguished from calls
/// that were not; the latter are not sent any more once the server reads again.
async fn stuck_server(timer: &Timer, timeline: &Timeline) -> Result<(), Box<dyn Error>> {
    let listener = listen().await?;
    let client = Arc::new(Client::connect(listener.local_addr()?, timer, |_| ()).await?);
    let (mut stuck, _) = listener.accept().await?;
    let calls = call(&client, 100, &[0; 256 << 10], LIMIT);
    let outcomes = calls.join_all().await;
    let of = |sent| outcomes.iter().filter(|o| **o == Err(CallError::Timeout { sent })).count();
    let (sent, unsent) = (of(true), of(false));
    timeline.say(format!(
        "100 calls of a stuck server: {sent} timed out that were sent, {unsent} that were not"
    ));
    require(
        sent > 0 && unsent > 0 && sent + unsent == 100,
        "all must time out, some of them unsent",
    )?;

    let _last = call(&client, 1, b"last", PATIENCE);
    let found = timer.timeout(PATIENCE, async {
        let mut found = 0;
        while read_frame(&mut stuck).await?.1 != b"last" {
            found += 1;
        }
        std::io::Result::Ok(found)
    });
    let found = found.await??;
    timeline.say(format!("the server goes on, and finds {found} of them"));
    require(found == sent, "it must find those that were sent, and no other")
}

/// Shows a server that dies: all its calls end at once, long before their time is up.
async fn dead_server(timer: &Timer, timeline: &Timeline) -> Result<(), Box<dyn Error>> {
    let server = Server::start(timer).await?;
    let client = Arc::new(Client::connect(server.address, timer, |_| ()).await?);
    let calls = call(&client, 1000, &Work::NeverEnds.request(), 10 * PATIENCE);
    while client.outstanding() < 1000 {
        timer.sleep(Duration::from_millis(1)).await?;
    }
    timeline.say(format!("{} calls of a silent server are outstanding", client.outstanding()));

    drop(server);
    let outcomes = timer.timeout(PATIENCE, calls.join_all()).await?;
    let closed = |outcome: &&_| matches!(outcome, Err(CallError::Closed { .. }));
    let (closed, left) = (outcomes.iter().filter(closed).count(), client.outstanding());
    timeline.say(format!("it dies: {closed} of them have ended, {left} are outstanding"));
    require(closed == 1000 && left == 0, "all of them must end at once")?;

    let outcome = client.call(&Work::NeverEnds.request(), PATIENCE).await;
    timeline.say(format!("one more call: {}", told(&outcome)));
    require(outcome == Err(CallError::Closed { sent: false }), "it must end unsent")
}

/// Makes so many calls at once.
fn call(
    client: &Arc<Client>,
    count: usize,
    body: &[u8],
    timeout: Duration,
) -> JoinSet<Result<Vec<u8>, CallError>> {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let (client, body) = (Arc::clone(client), body.to_vec());
        calls.spawn(async move { client.call(&body, timeout).await });
    }
    calls
}

fn told(outcome: &Result<Vec<u8>, CallError>) -> &'static str {
    match outcome {
        Ok(_) => "answered",
        Err(CallError::Timeout { sent: true }) => "timed out after it was sent",
        Err(CallError::Timeout { sent: false }) => "timed out before it was sent",
        Err(CallError::Closed { sent: true }) => "the connection was lost after it was sent",
        Err(CallError::Closed { sent: false }) => "the connection was lost before it was sent",
        Err(CallError::Refused) => "refused by the timer",
    }
}
