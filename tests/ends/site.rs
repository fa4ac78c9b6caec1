//! A timer of the storm, and everything that is built on it.

use crate::calls;
use crate::storm::{World, check, progress};
use fastrand::Rng;
use std::cell::Cell;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Series;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};
use tickwheel::{Listener, Task, Timeout, Timer, TimerBuilder, Worker};

const WORKER: &str = "worker";

thread_local! {
    /// Steps of the storm under way on this thread, one inside the other.
    pub(crate) static STEPS: Cell<u32> = const { Cell::new(0) };
}

pub(crate) struct Site {
    world: Weak<World>,
    /// Its tasks run in place on its reaper, and nowhere else.
    pub(crate) strict: bool,
    /// Whether the tasks of its timer are numbers.
    pub(crate) own: bool,
    /// Somebody has called `shutdown`; it has returned where it waits.
    pub(crate) begun: AtomicBool,
    pub(crate) ended: AtomicBool,
    pub(crate) pieces: Mutex<Vec<Piece>>,
    pub(crate) handles: Mutex<Vec<Handle>>,
}

/// What keeps a timer alive.
#[derive(Clone)]
pub(crate) enum Piece {
    Timer(Timer),
    Own(Timer<u64>),
    Keyed(KeyedTimer<u32, Token>),
    Purgatory(Purgatory<u32, Token>),
    Sleep(Arc<Mutex<Sleep>>),
}

impl Piece {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Piece::Timer(_) => "a timer",
            Piece::Own(_) => "a timer of numbers",
            Piece::Keyed(_) => "a keyed timer",
            Piece::Purgatory(_) => "a purgatory",
            Piece::Sleep(_) => "a sleep",
        }
    }
}

/// A future that tells whether its timer let it sleep; `None` once it has ended.
pub(crate) type Sleep = Option<Pin<Box<dyn Future<Output = bool> + Send>>>;

/// What does not.
pub(crate) enum Handle {
    Timeout(Timeout),
    /// And whether a cancel of it has answered true.
    Series(Series, Arc<AtomicBool>),
    Pending(Pending<u32, Token>),
    Drive(Pin<Box<dyn Future<Output = ()> + Send>>),
    Listener(Listener),
}

/// Lies in all that a site's timer owns: tasks, operations, executor; and in a listener's waker.
pub(crate) struct Token {
    pub(crate) site: Arc<Site>,
    /// Whether it lets everything else alone.
    pub(crate) quiet: bool,
}

impl Token {
    pub(crate) fn new(site: &Arc<Site>) -> Self {
        Token {
            site: Arc::clone(site),
            quiet: false,
        }
    }

    /// Notes that a task, a key or an operation has expired.
    pub(crate) fn expire(&self) {
        progress();
        // In a step a thread may run what was returned, or end what it was checking.
        let too_late = self.site.strict && STEPS.get() == 0 && self.site.ended.load(SeqCst);
        check(!too_late, "nothing expires after a shutdown");
        self.act();
    }

    /// Returns whether its key is kept, now and then.
    pub(crate) fn may_stay(&self) -> bool {
        !self.quiet
            && self
                .site
                .world
                .upgrade()
                .is_some_and(|world| world.random().bool())
    }

    /// Makes a step of the storm, now and then. A worker makes none: who drops its timer, perhaps a
    /// reaper, waits for it.
    pub(crate) fn act(&self) {
        let is_worker = thread::current().name() == Some(WORKER);
        if !self.quiet && !is_worker && STEPS.get() < 2 {
            self.site
                .world
                .upgrade()
                .iter()
                .for_each(World::act_in_task);
        }
    }
}

impl DelayedOperation for Token {
    fn try_complete(&mut self) -> bool {
        self.act();
        !self.quiet
            && self
                .site
                .world
                .upgrade()
                .is_some_and(|world| world.random().u64(..6) == 0)
    }
    fn on_complete(&mut self) {
        self.act();
    }
    fn on_expiration(&mut self) {
        self.expire();
    }
    fn on_cancellation(&mut self) {
        self.act();
    }
}

/// Drives a timer, on a thread of its own, until it has ended.
fn drive<T: Send + 'static>(timer: &Timer<T>, by_future: bool) -> JoinHandle<()> {
    let weak = timer.downgrade();
    let mut future = Box::pin(timer.drive(|_| pending::<()>()));
    thread::spawn(move || {
        let context = &mut Context::from_waker(Waker::noop());
        while by_future && future.as_mut().poll(context).is_pending() {
            thread::sleep(Duration::from_micros(50));
        }
        drop(future);
        while let Some(timer) = weak.upgrade().filter(|timer| !timer.is_shutdown()) {
            timer.advance_clock(Duration::from_micros(200));
        }
    })
}

fn finish<T: Send + 'static>(
    token: Token,
    builder: TimerBuilder,
    random: &mut Rng,
    run: impl Fn(T) + Clone + Send + Sync + 'static,
) -> Timer<T> {
    let site = Arc::clone(&token.site);
    let again = run.clone();
    let refused = AtomicBool::new(false);
    let builder = match random.u64(..3) {
        _ if site.strict => builder.executor(run),
        0 => builder.executor(run),
        1 => builder.executor(Worker::unbounded(WORKER, run).expect("a thread")),
        _ => {
            let every_other = move |task: T| {
                token.act();
                if refused.fetch_xor(true, SeqCst) {
                    return Err(task);
                }
                run(task);
                Ok(())
            };
            builder.executor(every_other).on_refused(again)
        }
    };
    let is_reaped = site.strict || random.u64(..2) == 0;
    let timer = if is_reaped {
        builder.start()
    } else {
        builder.build()
    }
    .expect("it can start");
    if !site.strict {
        let thread = drive(&timer, random.u64(..2) == 0);
        site.world.upgrade().expect("it builds").drives(thread);
    }
    let unpolled = Box::pin(timer.drive(|_| pending::<()>()));
    site.handles.lock().unwrap().push(Handle::Drive(unpolled));
    if random.u64(..2) == 0 {
        let listener = timer.listener();
        let listens = Token::new(&site);
        listener.next_expiration(&calls::waker(move || listens.act()));
        site.handles
            .lock()
            .unwrap()
            .push(Handle::Listener(listener));
    }
    timer
}

impl Site {
    pub(crate) fn build(world: &Arc<World>, random: &mut Rng) -> Arc<Self> {
        let site = Arc::new(Site {
            world: Arc::downgrade(world),
            strict: random.u64(..3) == 0,
            own: random.u64(..3) == 0,
            begun: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            pieces: Mutex::default(),
            handles: Mutex::default(),
        });
        let token = || Token::new(&site);
        let tick = [1, 50, 1_000][random.u64(..3) as usize];
        let builder = Timer::builder()
            .tick(Duration::from_micros(tick))
            .wheel_size(4);
        let builder = builder.shards(1 + random.u64(..2) as usize);
        let owner = token();
        let expires = Arc::new(token());
        let piece = if site.own {
            Piece::Own(finish(owner, builder, random, move |_| expires.expire()))
        } else {
            Piece::Timer(finish(owner, builder, random, Task::run))
        };
        site.pieces.lock().unwrap().push(piece);
        site
    }

    pub(crate) fn add(&self, piece: Piece) {
        self.pieces.lock().unwrap().push(piece);
    }

    /// Keeps the handle of what was accepted; nothing is refused before an end has begun.
    pub(crate) fn keep<E>(&self, handle: Result<Handle, E>) {
        self.accepts(handle.is_ok());
        self.handles.lock().unwrap().extend(handle);
    }

    /// Polls a future, unless it is being polled. Returns whether it has ended.
    pub(crate) fn poll(&self, sleep: &Mutex<Sleep>) -> bool {
        let Ok(mut sleep) = sleep.try_lock() else {
            return false;
        };
        let Some(future) = &mut *sleep else {
            return true;
        };
        let Poll::Ready(slept) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            return false;
        };
        *sleep = None;
        // A sleep does not keep its timer: it may have gone with the last of the other parts.
        let keeps = |piece: &Piece| !matches!(piece, Piece::Sleep(_));
        if self.pieces.lock().unwrap().iter().any(keeps) {
            self.accepts(slept);
        }
        true
    }

    pub(crate) fn accepts(&self, accepted: bool) {
        check(
            accepted || self.begun.load(SeqCst),
            "what nobody has ended accepts",
        );
    }
}
