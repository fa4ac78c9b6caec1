//! The load: callers that call as fast as they can, and what becomes of their calls.

use crate::options::Options;
use crate::require;
use crate::servers::{Server, Work};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::future::{SleepError, TimedError};
use tickwheel_services::rpc::{CallError, Client};
use tickwheel_services::timeline::Timeline;
use tokio::task::JoinSet;

/// How long a call may take.
const LIMIT: Duration = Duration::from_millis(300);
/// After how long a call is cancelled that is to be.
const LOSES_INTEREST: Duration = Duration::from_millis(100);
/// For the last responses, which come late.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Tally {
    called: AtomicU64,
    answered: AtomicU64,
    timed_out: AtomicU64,
    cancelled: AtomicU64,
    late: AtomicU64,
    /// Ended before the time was up: timed out, closed, or refused.
    wrong: AtomicU64,
}

pub(crate) async fn run(
    timer: &Timer,
    timeline: &Timeline,
    options: &Options,
) -> Result<(), Box<dyn Error>> {
    let server = Server::start(timer).await?;
    let tally = Arc::new(Tally::default());
    let counted = Arc::clone(&tally);
    let on_late = move |_| count(&counted.late);
    let client = Arc::new(Client::connect(server.address, timer, on_late).await?);

    timeline.say(format!("{} callers begin", options.callers));
    let end = timer.now() + Duration::from_secs(options.seconds.into());
    let mut callers = JoinSet::new();
    for caller in 0..u64::from(options.callers) {
        let (timer, client, tally) = (timer.clone(), Arc::clone(&client), Arc::clone(&tally));
        callers.spawn(async move {
            for number in caller.. {
                if timer.now() >= end {
                    break;
                }
                call(&timer, &client, &tally, number).await;
            }
        });
    }
    let mut seconds = timer.interval(Duration::from_secs(1));
    seconds.tick().await?; // The first is now.
    let mut called = 0;
    for _ in 0..options.seconds {
        seconds.tick().await?;
        let rate = get(&tally.called) - called;
        called += rate;
        timeline.say(format!(
            "{rate} calls/s: {}, {} outstanding",
            tally.line(),
            client.outstanding()
        ));
    }
    callers.join_all().await;
    timer.timeout(PATIENCE, settle(timer, &server, &tally)).await??;
    timeline.say(format!("at the end {}, {} outstanding", tally.line(), client.outstanding()));
    tally.check()?;
    require(client.outstanding() == 0, "calls are outstanding that have ended")
}

/// Makes one call and records its outcome. Of 100 that follow each other one is never answered, one
/// is answered too late, and one is cancelled.
async fn call(timer: &Timer, client: &Client, tally: &Tally, number: u64) {
    count(&tally.called);
    let start = Instant::now();
    let work = match number % 100 {
        0 => Work::NeverEnds,
        1 | 2 => Work::Takes(2 * LIMIT),
        _ => Work::Takes(Duration::ZERO),
    };
    let request = work.request();
    let call = client.call(&request, LIMIT);
    let outcome =
        if number % 100 == 2 { timer.timeout(LOSES_INTEREST, call).await } else { Ok(call.await) };
    let is_early = start.elapsed() < LIMIT;
    count(match outcome {
        Ok(Ok(_)) => &tally.answered,
        Ok(Err(CallError::Timeout { .. })) if !is_early => &tally.timed_out,
        Err(TimedError::Elapsed) => &tally.cancelled,
        _ => &tally.wrong,
    });
}

/// Waits until each response has been taken for an answer, or has come late.
async fn settle(timer: &Timer, server: &Server, tally: &Tally) -> Result<(), SleepError> {
    while get(&tally.answered) + get(&tally.late) != server.answers() {
        timer.sleep(Duration::from_millis(10)).await?;
    }
    Ok(())
}

impl Tally {
    fn line(&self) -> String {
        let Tally { answered, timed_out, cancelled, late, .. } = self;
        format!(
            "{} answered, {} timed out, {} cancelled, {} late responses",
            get(answered),
            get(timed_out),
            get(cancelled),
            get(late)
        )
    }

    /// Checks that each call ended once, as it had to.
    fn check(&self) -> Result<(), Box<dyn Error>> {
        let ended = get(&self.answered) + get(&self.timed_out) + get(&self.cancelled);
        require(get(&self.wrong) == 0, "calls ended that had no reason to")?;
        require(get(&self.called) == ended, "calls did not end exactly once")
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
