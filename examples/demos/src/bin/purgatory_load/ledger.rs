//! The ledger: what became of every request, kept apart from the purgatory itself.
//!
//! A byte for each request tells whether its condition holds and whether it has ended, so that a
//! second end is found, and at the end every request without one. How late they ended each thread
//! notes in a book of its own; the books are closed, and added up, when the threads end.

use crate::clock::Clock;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::mem;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tickwheel::purgatory::DelayedOperation;

/// The condition does not hold yet.
const UNREADY: u8 = 1;
/// It has not ended yet.
const OPEN: u8 = 2;
/// It was triggered after its condition came true, and that returned before its deadline.
const TRIGGERED: u8 = 4;

/// What is near to its deadline, in nanoseconds: longer than a thread is held up between two looks.
const NEAR: u64 = 20_000_000;

pub(crate) struct Ledger {
    pub(crate) clock: Clock,
    timeout: u64,
    requests: Box<[AtomicU8]>,
    twice: AtomicU64,
}

/// What waits in the purgatory. Times are the clock's.
pub(crate) struct Request {
    /// Not counted: three threads would meet at the count for every request.
    ledger: &'static Ledger,
    id: u32,
    checks: u32,
    arrived: u64,
    latency: u64,
    end: End,
}

#[derive(Clone, Copy)]
enum End {
    /// It was not ended, but dropped.
    None,
    Completed(u64),
    Expired(u64),
}

/// What the requests that ended on one thread, or on all, came to.
pub(crate) struct Book {
    pub(crate) completed: Histogram<u64>,
    pub(crate) expired: Histogram<u64>,
    /// Ended before the drawn latency, or expired before the timeout.
    pub(crate) early: u64,
    /// Expired although the latency was less than the timeout: its completion came too late.
    pub(crate) overtaken: u64,
    /// Completed at its deadline or after it: then its timeout may have fired all the same.
    pub(crate) past_deadline: u64,
    /// Expired although a trigger had come in time.
    pub(crate) missed: u64,
    /// How often a condition was checked.
    pub(crate) checks: u64,
}

/// The books of threads that have ended.
static CLOSED: Mutex<Vec<Book>> = Mutex::new(Vec::new());

thread_local! {
    static BOOK: RefCell<OpenBook> = RefCell::new(OpenBook(Book::new()));
}

struct OpenBook(Book);

impl Drop for OpenBook {
    fn drop(&mut self) {
        let book = mem::replace(&mut self.0, Book::new());
        CLOSED.lock().unwrap_or_else(PoisonError::into_inner).push(book);
    }
}

impl Ledger {
    /// Lives as long as the process.
    pub(crate) fn open(requests: u32, timeout: u64) -> &'static Self {
        // Not zero: so the memory is really touched here, before it is measured.
        let requests = (0..requests).map(|_| AtomicU8::new(UNREADY | OPEN)).collect();
        let (clock, twice) = (Clock::start(), AtomicU64::new(0));
        Box::leak(Box::new(Ledger { clock, timeout, requests, twice }))
    }

    pub(crate) fn request(&'static self, id: u32, arrived: u64, latency: u64) -> Request {
        Request { ledger: self, id, checks: 0, arrived, latency, end: End::None }
    }

    /// Makes a request's condition true.
    pub(crate) fn make_ready(&self, id: u32) {
        self.requests[id as usize].fetch_and(!UNREADY, Ordering::Release);
    }

    /// Notes that a trigger, which came after `make_ready`, has returned before the deadline: so
    /// the request has been completed, or its holder will complete it. It must not expire.
    pub(crate) fn note_trigger(&self, id: u32) {
        let request = &self.requests[id as usize];
        // Nearly always it has ended: then there is nothing to write.
        if request.load(Ordering::Relaxed) & OPEN != 0 {
            request.fetch_or(TRIGGERED, Ordering::Relaxed);
        }
    }

    /// Returns how many requests have not ended. At the end these were lost.
    pub(crate) fn open_requests(&self) -> u64 {
        let open = |request: &&AtomicU8| request.load(Ordering::Acquire) & OPEN != 0;
        self.requests.iter().filter(open).count() as u64
    }

    /// Returns how many ends came after the first one of their request.
    pub(crate) fn twice(&self) -> u64 {
        self.twice.load(Ordering::Relaxed)
    }
}

impl Request {
    /// Returns the time before which it must neither be completed nor end at all.
    fn due(&self) -> u64 {
        self.arrived + self.latency.min(self.ledger.timeout)
    }

    fn deadline(&self) -> u64 {
        self.arrived + self.ledger.timeout
    }
}

impl DelayedOperation for Request {
    fn try_complete(&mut self) -> bool {
        self.checks += 1;
        self.ledger.clock.step(0); // Many that are in vain take a while.
        self.ledger.requests[self.id as usize].load(Ordering::Acquire) & UNREADY == 0
    }

    fn on_complete(&mut self) {
        let (clock, deadline) = (self.ledger.clock, self.deadline());
        let mut now = clock.step(self.due());
        if (now..now + NEAR).contains(&deadline) {
            now = clock.look(); // Whether that has passed is a matter of microseconds.
        }
        self.end = End::Completed(now);
    }

    fn on_expiration(&mut self) {
        if let End::Completed(_) = self.end {
            self.end = End::Expired(self.ledger.clock.step(self.deadline()));
        }
    }
}

/// Only now is it certain how it ended: an expiry begins as a completion.
impl Drop for Request {
    fn drop(&mut self) {
        if matches!(self.end, End::None) {
            return;
        }
        let before = self.ledger.requests[self.id as usize].fetch_and(!OPEN, Ordering::AcqRel);
        BOOK.with_borrow_mut(|book| book.0.enter(self, before & TRIGGERED != 0));
        if before & OPEN == 0 {
            self.ledger.twice.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Book {
    fn new() -> Self {
        let hour = Duration::from_secs(3600).as_nanos() as u64;
        let lateness = || Histogram::new_with_max(hour, 3).expect("these bounds are valid");
        let (completed, expired) = (lateness(), lateness());
        let (early, overtaken, past_deadline, missed, checks) = (0, 0, 0, 0, 0);
        Book { completed, expired, early, overtaken, past_deadline, missed, checks }
    }

    fn enter(&mut self, request: &Request, was_triggered: bool) {
        self.checks += u64::from(request.checks);
        let (ended, due) = match request.end {
            End::None => return,
            End::Completed(now) => (now, request.arrived + request.latency),
            End::Expired(now) => (now, request.deadline()),
        };
        self.early += u64::from(ended < due);
        let lateness = ended.saturating_sub(due);
        if let End::Completed(_) = request.end {
            self.completed.saturating_record(lateness);
            self.past_deadline += u64::from(ended >= request.deadline());
        } else {
            self.expired.saturating_record(lateness);
            self.overtaken += u64::from(request.latency < request.ledger.timeout);
            self.missed += u64::from(was_triggered);
        }
    }

    /// Returns the sum of all books, once the threads have ended.
    pub(crate) fn total() -> Book {
        let mut total = Book::new();
        for book in CLOSED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            total.completed += &book.completed;
            total.expired += &book.expired;
            total.early += book.early;
            total.overtaken += book.overtaken;
            total.past_deadline += book.past_deadline;
            total.missed += book.missed;
            total.checks += book.checks;
        }
        total
    }
}
