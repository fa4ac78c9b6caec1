//! Four jobs that services do with other timers, done with this one, in virtual time.
//!
//! ```text
//! cargo run -p demos --bin migrate
//! ```
//!
//! Each is a page of user code, as it is after it came from Netty, Kafka or tokio-util; what its
//! lines were called there stands in `docs/MIGRATING.md`. The exit status is 1 if anything
//! happens that should not, or not at its millisecond.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{AddError, BuildError, ManualClock, Timeout, Timer, TimerBuilder, TimerEntry};

/// Plays in a scene. Returns what should have happened in it, and when.
type Play = fn(&Scene) -> Result<&'static str, Box<dyn Error>>;

const PLAYS: [(&str, Play); 4] = [
    (
        "Netty's HashedWheelTimer: calls that time out after 300 ms, two at a time",
        netty,
    ),
    (
        "Kafka's Timer: members of a group, their sessions 300 ms long",
        kafka_timer,
    ),
    (
        "Kafka's purgatory: produces wait for two replicas, 500 ms at most",
        kafka_purgatory,
    ),
    (
        "tokio-util's DelayQueue: sessions outlive a connection by 300 ms",
        delay_queue,
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    for (title, play) in PLAYS {
        let scene = Scene::new();
        let outcome = play(&scene)?;
        println!("{title}\n{}", scene.diary());
        if scene.diary() != outcome {
            return Err(format!("this should be\n{outcome}").into());
        }
    }
    Ok(())
}

/// The scene: the virtual time in which a job plays, and a diary of what happens.
#[derive(Clone)]
struct Scene {
    clock: ManualClock,
    start: Instant,
    diary: Arc<Mutex<String>>,
}

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::new();
        Scene {
            start: clock.now(),
            clock,
            diary: Arc::default(),
        }
    }

    /// Builds a timer that runs while the scene [waits](Self::wait_until).
    fn timer<T: Send>(&self, builder: TimerBuilder<T>) -> Result<Timer<T>, BuildError> {
        builder.clock(self.clock.clone()).build()
    }

    /// Lets the time pass until so many milliseconds after the start.
    fn wait_until(&self, after_ms: u64) {
        self.clock
            .run_until(self.start + Duration::from_millis(after_ms));
    }

    /// Writes into the diary what happens now.
    fn tell(&self, what: &str) {
        let after = self.clock.now() - self.start;
        let line = format!("{} ms  {what}\n", after.as_millis());
        self.diary.lock().unwrap().push_str(&line);
    }

    fn diary(&self) -> String {
        self.diary.lock().unwrap().clone()
    }
}

/// What the timer keeps of a call. No closure: so it allocates nothing, and `shutdown` returns
/// something that one can read.
struct Call(u32);

/// From Netty's `HashedWheelTimer`: calls that time out.
fn netty(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let diary = scene.clone();
    let expire = move |Call(call)| diary.tell(&format!("call {call}: timed out"));
    let timer = scene.timer(Timer::builder().max_pending(2).executor(expire))?;
    // Either the answer or the timeout wins, and `cancel` says which.
    let answer = |timeout: &Timeout<Call>| match timeout.cancel().into_task() {
        Some(Call(call)) => scene.tell(&format!("call {call}: answered")),
        None => scene.tell("an answer is too late"),
    };
    let limit = Duration::from_millis(300);
    let first = timer.after(limit, Call(1))?;
    let second = timer.after(limit, Call(2))?;
    scene.wait_until(100);
    answer(&first);
    timer.after(Duration::from_secs(30), Call(3))?; // In the place of the first.
    scene.wait_until(200);
    if let Err(error @ AddError::Full(_)) = timer.after(limit, Call(4)) {
        let Call(call) = error.into_task();
        scene.tell(&format!(
            "call {call}: refused, {} are in flight",
            timer.len()
        ));
    }
    scene.wait_until(400);
    answer(&second);
    for entry in timer.shutdown() {
        scene.tell(&format!(
            "call {}: in flight at the end",
            entry.into_task().0
        ));
    }
    Ok("\
100 ms  call 1: answered
200 ms  call 4: refused, 2 are in flight
300 ms  call 2: timed out
400 ms  an answer is too late
400 ms  call 3: in flight at the end
")
}

const SESSION: Duration = Duration::from_millis(300);

/// From Kafka's `Timer` and `TimerTask`: members of a group, and their sessions.
fn kafka_timer(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let timer: Timer = scene.timer(Timer::builder().name("sessions"))?;
    let mut sessions: HashMap<&str, Timeout> = HashMap::new();
    for member in ["ada", "bob", "cyd"] {
        let diary = scene.clone();
        let expire = move || diary.tell(&format!("{member}: session expired"));
        sessions.insert(member, timer.add(TimerEntry::after(SESSION, expire))?);
    }
    // A heartbeat extends the session by one write: nothing is taken out, nothing is added again.
    let heartbeat = |session: &Timeout| {
        let is_alive = session.touch(SESSION);
        scene.tell(if is_alive {
            "ada: heartbeat"
        } else {
            "ada: this comes too late"
        });
    };
    scene.wait_until(100);
    heartbeat(&sessions["ada"]);
    scene.wait_until(200);
    if sessions
        .remove("cyd")
        .is_some_and(|session| session.cancel().is_cancelled())
    {
        scene.tell(&format!("cyd: leaves, {} sessions are left", timer.len()));
    }
    scene.wait_until(500);
    heartbeat(&sessions["ada"]);
    Ok("\
100 ms  ada: heartbeat
200 ms  cyd: leaves, 2 sessions are left
300 ms  bob: session expired
400 ms  ada: session expired
500 ms  ada: this comes too late
")
}

/// A produce that is answered when two replicas have its records.
struct DelayedProduce {
    partition: &'static str,
    replicas: Arc<AtomicUsize>,
    scene: Scene,
}

impl DelayedOperation for DelayedProduce {
    /// Returns whether the condition holds, and does no more: `on_complete` follows by itself if it
    /// does.
    fn try_complete(&mut self) -> bool {
        self.replicas.load(Ordering::Acquire) >= 2
    }

    /// Completes the operation once, also when the time is up.
    fn on_complete(&mut self) {
        let end = if self.try_complete() {
            "answered"
        } else {
            "timed out"
        };
        self.scene.tell(&format!("{}: {end}", self.partition));
    }
}

/// From Kafka's `DelayedOperationPurgatory`: a produce that waits for its replicas.
fn kafka_purgatory(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let timer: Timer = scene.timer(Timer::builder())?;
    let produces = Purgatory::new(&timer);
    let partitions = ["orders-0", "orders-1"].map(|name| (name, Arc::new(AtomicUsize::new(0))));
    for (partition, replicas) in &partitions {
        let replicas = Arc::clone(replicas);
        let produce = DelayedProduce {
            partition,
            replicas,
            scene: scene.clone(),
        };
        let _ =
            produces.try_complete_else_watch(produce, Duration::from_millis(500), &[*partition])?;
    }
    // First the change, then the trigger.
    let fetched = |(partition, replicas): &(&'static str, Arc<AtomicUsize>)| {
        replicas.fetch_add(1, Ordering::Release);
        let completed = produces.check_and_complete(partition);
        scene.tell(&format!(
            "{partition}: a replica has it, {completed} produces completed"
        ));
    };
    scene.wait_until(100);
    partitions.iter().for_each(fetched);
    scene.wait_until(200);
    fetched(&partitions[0]);
    scene.wait_until(600);
    Ok("\
100 ms  orders-0: a replica has it, 0 produces completed
100 ms  orders-1: a replica has it, 0 produces completed
200 ms  orders-0: answered
200 ms  orders-0: a replica has it, 1 produces completed
500 ms  orders-1: timed out
")
}

struct Session(u32);

/// From tokio-util's `DelayQueue` with a map of its keys beside it: sessions that outlive their
/// connection. They lie in the timer itself: there is no map of keys that could name another one's
/// timer.
fn delay_queue(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let (timer, diary): (Timer, _) = (scene.timer(Timer::builder())?, scene.clone());
    let gone = KeyedTimer::new(&timer, move |client: &str, Session(number)| {
        diary.tell(&format!("{client}: session {number} expired"));
    });
    let disconnect = |client, session| -> Result<(), AddError<Session>> {
        let soon = Duration::from_millis(300);
        if let Some(Session(former)) = gone.add(client, soon, session)? {
            scene.tell(&format!("{client}: session {former} gives way"));
        }
        Ok(())
    };
    // Returns the session, unless it has expired: never both.
    let connect = |client| gone.cancel(&client);

    disconnect("ada", Session(1))?;
    disconnect("bob", Session(2))?;
    scene.wait_until(100);
    let Session(number) = connect("ada").ok_or("she should have 200 ms left")?;
    scene.tell(&format!("ada: session {number} resumed"));
    scene.wait_until(350);
    scene.tell(&format!(
        "bob: is his session there? {}",
        connect("bob").is_some()
    ));
    disconnect("ada", Session(number))?;
    scene.wait_until(600);
    disconnect("ada", Session(3))?;
    scene.wait_until(1000);
    Ok("\
100 ms  ada: session 1 resumed
300 ms  bob: session 2 expired
350 ms  bob: is his session there? false
600 ms  ada: session 1 gives way
900 ms  ada: session 3 expired
")
}
