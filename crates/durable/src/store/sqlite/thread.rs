//! The thread that owns the file, and commits for many calls at once.

use crate::contained::{contained, event};
use crate::entry::Error;
use crate::store::sqlite::file::{self, Guard};
use crate::store::sqlite::{Sqlite, SqliteFile};
use crate::when::StoreTime;
use rusqlite::{Connection, ErrorCode};
use std::cell::Cell;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;

/// All tokens are greater. Has as many bytes in the file as a token: a claim does not change the
/// length of a row.
const FIRST_TOKEN: i64 = 1 << 50;
/// How many jobs a transaction has at most: the first one waits for the last one.
const GROUP: usize = 64;
/// How often the thread checks the file's path and the clocks.
const EVERY: Duration = Duration::from_secs(1);
/// Above which difference, in microseconds, the clock has leapt: less than the shortest lease, and
/// more than passes between the readings of two clocks.
const LEAP: u64 = 50_000;

/// The times of two clocks at one moment.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    /// The time of day, which may leap.
    pub(super) wall: StoreTime,
    /// A clock that does not leap.
    pub(super) steady: Instant,
}

impl Shown {
    pub(super) fn now() -> Self {
        Shown {
            wall: SystemTime::now().into(),
            steady: Instant::now(),
        }
    }
}

/// Reads the clocks. Tests have clocks of their own.
pub(super) type Clocks = Box<dyn Fn() -> Shown + Send>;

/// The thread's state besides the file.
pub(super) struct State {
    clocks: Clocks,
    /// The clocks before this transaction. In a transaction time goes on by the steady clock.
    shown: Shown,
    /// The greatest token of any claim since the start. Two claims of a key whose row has ended
    /// between them could have the same token by the clock alone: on a board that has just started
    /// the clock may be before 2005, where [`FIRST_TOKEN`] is the greater one.
    pub(super) greatest: Cell<i64>,
}

impl State {
    /// Returns the store's time.
    pub(super) fn now(&self) -> StoreTime {
        let Shown { wall, steady } = self.shown;
        let now = (self.clocks)().steady;
        wall.plus(now.saturating_duration_since(steady))
    }

    /// Reads the clocks, between transactions. After a leap the ends of claims are moved by as
    /// much: the node that has the claims is alive.
    fn look(&mut self, file: &Connection) {
        let shown = (self.clocks)();
        let leapt = shown.wall.as_micros() - self.now().as_micros();
        if leapt.unsigned_abs() > LEAP {
            // Claims of dead nodes ended in 1970, and have run out after the move as well.
            let moved = "UPDATE tickwheel_timer SET until = max(until + ?1, 0) WHERE claim > 0";
            if let Err(error) = file.execute(moved, [leapt]) {
                // Time goes on as before. The next look tries again.
                event!(warn, %error, "the store's clock has leapt, and claims were not moved");
                return;
            }
        }
        self.shown = shown;
    }
}

/// Does something in a transaction, and returns whether it succeeded.
type Run = Box<dyn FnOnce(&Connection, &State) -> bool + Send>;

/// Something to be done in a transaction.
pub(super) struct Job {
    run: Run,
    /// Whether it shares its transaction with others.
    is_shared: bool,
    /// Told how the transaction has ended.
    ended: oneshot::Sender<Result<(), Error>>,
}

/// Starts a thread, and opens the file there.
pub(super) async fn start(what: SqliteFile, clocks: Clocks) -> Result<Sqlite, Error> {
    let (jobs, queue) = mpsc::channel();
    let (opened, is_open) = oneshot::channel();
    let run = move || {
        let (file, guard) = match file::open(&what) {
            Ok(open) => open,
            Err(error) => {
                let _ = opened.send(Err(error));
                return;
            }
        };
        let state = State {
            shown: clocks(),
            clocks,
            greatest: Cell::new(FIRST_TOKEN),
        };
        let _ = opened.send(Ok(()));
        work(guard, file, state, &queue);
    };
    let thread = thread::Builder::new().name("tickwheel-sqlite".to_owned());
    thread.spawn(run).map_err(Error::unavailable)?;
    is_open
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("the thread ended")))?;
    Ok(Sqlite { jobs })
}

impl Sqlite {
    /// Runs something in a transaction, which it shares with other jobs or has alone. Fails if the
    /// transaction does; otherwise returns what `run` did.
    pub(super) async fn ask<A: Send + 'static, E: Send + 'static>(
        &self,
        run: impl FnOnce(&Connection, &State) -> Result<A, E> + Send + 'static,
        is_shared: bool,
    ) -> Result<Result<A, E>, Error> {
        let (answer, mut answered) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let run = Box::new(move |file: &Connection, state: &State| {
            let result = run(file, state);
            let is_done = result.is_ok();
            // If the caller was dropped, this drops the answer. Its `Drop` may be the user's code,
            // and panic.
            drop(contained(|| answer.send(result).is_ok()));
            is_done
        });
        let job = Job {
            run,
            is_shared,
            ended,
        };
        self.jobs.send(job).map_err(|_| Error::Closed)?;
        let ended = end
            .await
            .unwrap_or_else(|_| Err(Error::uncertain("the thread ended")));
        let answer = answered.try_recv().ok();
        // The job's own error says more than the transaction's.
        if !matches!(answer, Some(Err(_))) {
            ended?;
        }
        answer.ok_or(Error::Closed)
    }
}

/// Does jobs until the store is dropped, or the file is gone from its path. Parameters are dropped
/// from the last to the first: the file is closed before another node may open it.
fn work(guard: Guard, file: Connection, mut state: State, queue: &mpsc::Receiver<Job>) {
    let mut looked = Instant::now();
    // A job that does not share its transaction is kept for the next one.
    let mut kept = None;
    loop {
        if looked.elapsed() >= EVERY {
            looked = Instant::now();
            if let Err(error) = guard.check() {
                event!(error, %error, "the store is closed");
                drop(file);
                drop(guard);
                for job in kept.into_iter().chain(queue.iter()) {
                    let _ = job.ended.send(Err(error.clone()));
                }
                return;
            }
        }
        let next = match kept.take() {
            Some(kept) => Ok(kept),
            None => queue.recv_timeout(EVERY),
        };
        state.look(&file);
        let first = match next {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let is_shared = first.is_shared;
        let mut group = vec![first];
        while is_shared && group.len() < GROUP {
            match queue.try_recv() {
                Ok(next) if next.is_shared => group.push(next),
                next => {
                    kept = next.ok();
                    break;
                }
            }
        }
        let jobs = group.into_iter().map(|job| (job.run, job.ended));
        let (runs, ends): (Vec<_>, Vec<_>) = jobs.unzip();
        let ended = transact(&file, &state, runs);
        for end in ends {
            let _ = end.send(ended.clone()); // Fails if the caller was dropped.
        }
    }
}

/// Does jobs in one transaction. If one of them fails, the transaction is rolled back: the others
/// are answered that nothing was done.
fn transact(file: &Connection, state: &State, runs: Vec<Run>) -> Result<(), Error> {
    file.execute_batch("BEGIN IMMEDIATE")
        .map_err(Error::unavailable)?;
    for run in runs {
        if !run(file, state) {
            let _ = file.execute_batch("ROLLBACK"); // Fails if SQLite has rolled back by itself.
            return Err(Error::unavailable(
                "another write of the same transaction failed",
            ));
        }
    }
    file.execute_batch("COMMIT").map_err(|error| {
        let _ = file.execute_batch("ROLLBACK");
        match error.sqlite_error_code() {
            // A commit that did not fit on the disk is none, also to a node after a crash.
            Some(ErrorCode::DiskFull) => Error::unavailable(error),
            // A user's deferred constraint, which is checked at the commit.
            Some(ErrorCode::ConstraintViolation) => Error::refused(error),
            _ => Error::uncertain(error),
        }
    })
}
