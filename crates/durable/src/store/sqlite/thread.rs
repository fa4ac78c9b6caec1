//! The thread that has the file, and commits for many at once.

use crate::entry::Error;
use crate::store::Place;
use crate::store::rows::earlier;
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::file::{self, Guard};
use crate::sync::{self, lock};
use crate::when::StoreTime;
use rusqlite::{Connection, ErrorCode};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, oneshot};

/// Tokens are greater. It has as many bytes as a token, so that a claim does not change the row's
/// length.
const FIRST_TOKEN: i64 = 1 << 50;
/// How many jobs one transaction holds: the first of them waits for the last.
const GROUP: usize = 64;
/// How often the thread looks at the file's path, and at the clocks.
const EVERY: Duration = Duration::from_secs(1);
/// By how much the clock goes wrong without a leap: less than the shortest lease, and more than the
/// time between two looks at clocks that are meant to be one.
const LEAP: u64 = 50_000;

/// What two clocks show at one moment.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    /// This machine's clock, which may leap.
    pub(super) wall: StoreTime,
    /// One that does not.
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

/// Reads the clocks: a test has its own.
pub(super) type Clocks = Box<dyn Fn() -> Shown + Send>;

/// The first of the places that the node may not know of. A node that runs no timer never asks: a
/// queue of them would grow for ever.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Locked for a look.
    first: sync::Mutex<Option<Place>>,
    stirred: Notify,
}

impl Told {
    fn tell(&self, place: Place) {
        let mut first = lock(&self.first);
        *first = earlier(*first, Some(place));
        drop(first);
        self.stirred.notify_one();
    }

    /// Waits for a place.
    pub(super) async fn first(&self) -> Place {
        loop {
            if let Some(place) = lock(&self.first).take() {
                return place;
            }
            self.stirred.notified().await;
        }
    }
}

/// What the thread knows besides the file.
pub(super) struct State {
    pub(super) space: Arc<str>,
    clocks: Clocks,
    /// What the clocks showed before this transaction. Within it time goes on with the steady one.
    shown: Shown,
    /// The greatest token of any claim. By the clock alone, which may be before 2005 on a board
    /// that has just started, two claims of a key whose row has ended meanwhile could have the same
    /// token.
    pub(super) greatest: Cell<i64>,
    told: Arc<Told>,
}

impl State {
    /// Returns the store's time.
    pub(super) fn now(&self) -> StoreTime {
        let Shown { wall, steady } = self.shown;
        let now = (self.clocks)().steady;
        wall.plus(now.saturating_duration_since(steady))
    }

    /// Tells the node of a place that it may not know of.
    pub(super) fn tell(&self, place: Place) {
        self.told.tell(place);
    }

    /// Looks at the clocks, outside of transactions. After a leap the node claims from the first
    /// row on, and claims last as long as they would have: the node that has them lives.
    fn look(&mut self, file: &Connection) {
        let shown = (self.clocks)();
        let leapt = shown.wall.as_micros() - self.now().as_micros();
        if leapt.unsigned_abs() > LEAP {
            // Those of dead nodes have run out all the same: their ends are 1970.
            let moved = "UPDATE tickwheel_timer SET until = max(until + ?1, 0) WHERE claim > 0";
            if let Err(error) = file.execute(moved, [leapt]) {
                // Time goes on as before, up to the next look.
                tracing::warn!(%error, "the store's clock has leapt, and claims were not moved");
                return;
            }
            self.tell(Place::before(StoreTime::MIN));
        }
        self.shown = shown;
    }
}

/// Something to be done in a transaction, and answered once it is known whether that was committed.
pub(super) trait Job: Send {
    /// Returns whether it succeeded.
    fn run(&mut self, file: &Connection, state: &mut State) -> bool;

    /// Returns whether it shares its transaction with others.
    fn is_shared(&self) -> bool;

    /// Answers; `error` is the transaction's.
    fn answer(self: Box<Self>, error: Option<Error>);
}

struct Call<F, A, E> {
    run: Option<F>,
    result: Option<Result<A, E>>,
    answer: oneshot::Sender<Result<A, E>>,
    is_shared: bool,
    /// Makes an error of the transaction's one of its own.
    own: fn(Error) -> E,
}

impl<F, A, E> Job for Call<F, A, E>
where
    F: FnOnce(&Connection, &mut State) -> Result<A, E> + Send,
    A: Send,
    E: Send,
{
    fn run(&mut self, file: &Connection, state: &mut State) -> bool {
        self.result = self.run.take().map(|run| run(file, state));
        matches!(self.result, Some(Ok(_)))
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn answer(self: Box<Self>, error: Option<Error>) {
        let result = match (self.result, error) {
            // Its own error tells more.
            (Some(Err(own)), _) => Err(own),
            (_, Some(error)) => Err((self.own)(error)),
            (Some(Ok(answer)), None) => Ok(answer),
            (None, None) => Err((self.own)(Error::Closed)),
        };
        // Nobody waits any more: dropped.
        let _ = self.answer.send(result);
    }
}

type Jobs = mpsc::Receiver<Box<dyn Job>>;

/// Opens a file on a thread of its own.
pub(super) async fn start(path: PathBuf, clocks: Clocks) -> Result<Sqlite, Error> {
    let (jobs, queue) = mpsc::channel();
    let told = Arc::new(Told::default());
    let tells = Arc::clone(&told);
    let (opened, is_open) = oneshot::channel();
    let run = move || {
        let found = file::find(&path).map_err(Error::unavailable);
        let open = found.and_then(|path| file::open(&path));
        let (file, guard) = match open {
            Ok(open) => open,
            Err(error) => {
                let _ = opened.send(Err(error));
                return;
            }
        };
        let space: Arc<str> = guard.path().to_string_lossy().into();
        let state = State {
            space: Arc::clone(&space),
            shown: clocks(),
            clocks,
            greatest: Cell::new(FIRST_TOKEN),
            told: tells,
        };
        let _ = opened.send(Ok(space));
        work(file, guard, state, &queue);
    };
    let thread = thread::Builder::new().name("tickwheel-sqlite".to_owned());
    thread.spawn(run).map_err(Error::unavailable)?;
    let space = is_open
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("the thread ended")))?;
    Ok(Sqlite { space, jobs, told })
}

impl Sqlite {
    /// Does something in a transaction that it shares, or has alone. Makes an error of that one of
    /// the caller's kind by `own`.
    pub(super) async fn ask<A: Send + 'static, E: Send + 'static>(
        &self,
        run: impl FnOnce(&Connection, &mut State) -> Result<A, E> + Send + 'static,
        is_shared: bool,
        own: fn(Error) -> E,
    ) -> Result<A, E> {
        let (sender, answer) = oneshot::channel();
        let job = Box::new(Call {
            run: Some(run),
            result: None,
            answer: sender,
            is_shared,
            own,
        });
        self.jobs.send(job).map_err(|_| own(Error::Closed))?;
        answer
            .await
            .unwrap_or_else(|_| Err(own(Error::uncertain("the thread ended"))))
    }
}

/// Does what it is asked until nobody can ask, or the file is gone.
fn work(file: Connection, guard: Guard, mut state: State, queue: &Jobs) {
    let mut looked = Instant::now();
    let mut kept = None;
    loop {
        if looked.elapsed() >= EVERY {
            looked = Instant::now();
            if let Err(error) = guard.check() {
                tracing::error!(%error, "the store is closed");
                drop(file);
                drop(guard);
                refuse(kept, queue, &error);
                return;
            }
        }
        let next = match kept.take() {
            Some(kept) => Ok(kept),
            None => queue.recv_timeout(EVERY),
        };
        let first = match next {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        state.look(&file);
        let Some(first) = first else { continue };
        let mut group = vec![first];
        // What does not share begins the next one.
        let more = || {
            if kept.is_some() {
                return None;
            }
            let next = queue.try_recv().ok()?;
            if next.is_shared() {
                return Some(next);
            }
            kept = Some(next);
            None
        };
        let error = transact(&file, &mut state, &mut group, more).err();
        group.into_iter().for_each(|job| job.answer(error.clone()));
    }
}

/// Answers all that is asked with an error.
fn refuse(kept: Option<Box<dyn Job>>, queue: &Jobs, error: &Error) {
    let jobs = kept.into_iter().chain(queue.iter());
    jobs.for_each(|job| job.answer(Some(error.clone())));
}

/// Does what waits in one transaction. One job that fails rolls it back for all: they are told that
/// nothing was done.
fn transact(
    file: &Connection,
    state: &mut State,
    group: &mut Vec<Box<dyn Job>>,
    mut more: impl FnMut() -> Option<Box<dyn Job>>,
) -> Result<(), Error> {
    file.execute_batch("BEGIN IMMEDIATE")
        .map_err(Error::unavailable)?;
    let mut next = 0;
    while let Some(job) = group.get_mut(next) {
        if !job.run(file, state) {
            let _ = file.execute_batch("ROLLBACK"); // Fails if SQLite did it already.
            return Err(Error::unavailable(
                "another write of the same transaction failed",
            ));
        }
        next += 1;
        if next < GROUP && group[0].is_shared() {
            group.extend(more());
        }
    }
    file.execute_batch("COMMIT").map_err(|error| {
        let _ = file.execute_batch("ROLLBACK");
        match error.sqlite_error_code() {
            // What did not fit is no commit, also to one who opens the file after a crash.
            Some(ErrorCode::DiskFull) => Error::unavailable(error),
            // A user's, that is checked only now.
            Some(ErrorCode::ConstraintViolation) => Error::Refused(Arc::new(error)),
            _ => Error::uncertain(error),
        }
    })
}
