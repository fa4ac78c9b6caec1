//! The thread that owns the file, and commits for many calls at once.

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

/// The first place of rows that the node does not know of. Not a queue: a node that runs no timer
/// never takes anything from it, and the queue would grow for ever.
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

    /// Takes the place, and waits if there is none.
    pub(super) async fn first(&self) -> Place {
        loop {
            if let Some(place) = lock(&self.first).take() {
                return place;
            }
            self.stirred.notified().await;
        }
    }
}

/// The thread's state besides the file.
pub(super) struct State {
    pub(super) space: Arc<str>,
    clocks: Clocks,
    /// The clocks before this transaction. In a transaction time goes on by the steady clock.
    shown: Shown,
    /// The greatest token of any claim since the start. Two claims of a key whose row has ended
    /// between them could have the same token by the clock alone: on a board that has just started
    /// the clock may be before 2005, where [`FIRST_TOKEN`] is the greater one.
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

    /// Tells the node of a place.
    pub(super) fn tell(&self, place: Place) {
        self.told.tell(place);
    }

    /// Reads the clocks, between transactions. After a leap the node claims from the first row on,
    /// and the ends of claims are moved by as much: the node that has the claims is alive.
    fn look(&mut self, file: &Connection) {
        let shown = (self.clocks)();
        let leapt = shown.wall.as_micros() - self.now().as_micros();
        if leapt.unsigned_abs() > LEAP {
            // Claims of dead nodes ended in 1970, and have run out after the move as well.
            let moved = "UPDATE tickwheel_timer SET until = max(until + ?1, 0) WHERE claim > 0";
            if let Err(error) = file.execute(moved, [leapt]) {
                // Time goes on as before. The next look tries again.
                tracing::warn!(%error, "the store's clock has leapt, and claims were not moved");
                return;
            }
            self.tell(Place::before(StoreTime::MIN));
        }
        self.shown = shown;
    }
}

/// Something to be done in a transaction. Its caller is answered once the transaction has ended.
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
    /// Converts an error of the transaction.
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
            // The job's own error says more than the transaction's.
            (Some(Err(own)), _) => Err(own),
            (_, Some(error)) => Err((self.own)(error)),
            (Some(Ok(answer)), None) => Ok(answer),
            (None, None) => Err((self.own)(Error::Closed)),
        };
        let _ = self.answer.send(result); // Fails if the caller was dropped.
    }
}

type Jobs = mpsc::Receiver<Box<dyn Job>>;

/// Starts a thread, and opens the file there.
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
    /// Runs something in a transaction, which it shares with other jobs or has alone. `own`
    /// converts an error of the transaction.
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

/// Does jobs until the store is dropped, or the file is gone from its path.
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
        // A job that does not share its transaction is kept for the next one.
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

/// Answers all jobs with an error until the store is dropped.
fn refuse(kept: Option<Box<dyn Job>>, queue: &Jobs, error: &Error) {
    let jobs = kept.into_iter().chain(queue.iter());
    jobs.for_each(|job| job.answer(Some(error.clone())));
}

/// Does jobs in one transaction. If one of them fails, the transaction is rolled back: the others
/// are answered that nothing was done.
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
            let _ = file.execute_batch("ROLLBACK"); // Fails if SQLite has rolled back by itself.
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
            // A commit that did not fit on the disk is none, also to a node after a crash.
            Some(ErrorCode::DiskFull) => Error::unavailable(error),
            // A user's deferred constraint, which is checked at the commit.
            Some(ErrorCode::ConstraintViolation) => Error::Refused(Arc::new(error)),
            _ => Error::uncertain(error),
        }
    })
}
