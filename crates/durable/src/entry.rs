//! Entries, outcomes, answers and errors.

use crate::node::deadline::Deadline;
use crate::node::draw;
use crate::store::{NewRow, Place, StoreTime};
use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

/// The longest key, tag or namespace, in bytes.
const LONGEST_NAME: usize = 512;
/// The longest payload, in bytes.
const LONGEST_PAYLOAD: usize = 1 << 20;

/// When a timer is due, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this moment. A moment in the past is due now.
    At(SystemTime),
    /// This long after the call, at most until the year 5138.
    After(Duration),
    /// At a random time between this moment and so much later, which spreads timers that are due
    /// together. [`Due::planned`] is the moment itself.
    Spread(SystemTime, Duration),
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> Self {
        When::At(time)
    }
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        When::After(delay)
    }
}

impl When {
    /// Resolves the moment, given bounds of the store's clock. A moment in the past becomes the
    /// present, and moments that pauses use are avoided.
    pub(crate) fn resolve(self, now: RangeInclusive<StoreTime>) -> StoreTime {
        let due = match self {
            When::At(time) => StoreTime::from(time).max(*now.start()),
            When::After(delay) => now.end().plus(delay),
            When::Spread(time, by) => {
                let micros = u64::try_from(by.as_micros())
                    .unwrap_or(u64::MAX)
                    .saturating_add(1);
                let later = Duration::from_micros(draw() as u64 % micros);
                StoreTime::from(time).plus(later).max(*now.start())
            }
        };
        due.unmarked()
    }

    /// Returns the intended moment, if the timer is due at another.
    pub(crate) fn planned(self, due: StoreTime) -> Option<StoreTime> {
        match self {
            When::At(time) | When::Spread(time, _) => Some(time.into()).filter(|it| *it != due),
            When::After(_) => None,
        }
    }
}

/// A timer to be scheduled.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::Entry;
///
/// let reminder = Entry::keyed("cart-7", Duration::from_secs(3600), "you left something");
/// let reminder = reminder.tag("customer-3");
/// // Cheaper, if nobody cancels by key:
/// let message = Entry::unkeyed(Duration::from_millis(250), [1, 2, 3]);
/// # drop((reminder, message));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(crate) key: Option<String>,
    pub(crate) tag: Option<String>,
    pub(crate) when: When,
    pub(crate) payload: Vec<u8>,
    keep: bool,
    max_wait: Option<Duration>,
}

impl Entry {
    /// Returns an entry with a key. A namespace has at most one timer for each key: another
    /// schedule replaces it. Keys have at most 512 bytes, and no zero byte.
    pub fn keyed(
        key: impl Into<String>,
        when: impl Into<When>,
        payload: impl Into<Vec<u8>>,
    ) -> Self {
        Entry {
            key: Some(key.into()),
            ..Entry::unkeyed(when, payload)
        }
    }

    /// Returns an entry without a key: cheaper, but only its [tag](Self::tag) can cancel the timer.
    pub fn unkeyed(when: impl Into<When>, payload: impl Into<Vec<u8>>) -> Self {
        let (when, payload) = (when.into(), payload.into());
        Entry {
            key: None,
            tag: None,
            when,
            payload,
            keep: false,
            max_wait: None,
        }
    }

    /// Sets the tag, by which many timers can be cancelled at once: at most 512 bytes, and no zero
    /// byte.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Keeps the key's present timer, also while a handler has it. The answer is then
    /// [`Scheduled::Kept`].
    pub fn keep_existing(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Debounces: each schedule of the key puts its timer off, up to `max_wait` after the first
    /// schedule. The debounce begins anew once a handler has the timer, and after a schedule
    /// without debounce. To fire at once, [`touch`](crate::Durable::touch) the key with
    /// [`Duration::ZERO`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_durable::Entry;
    ///
    /// // A second after the last change, and at least each minute.
    /// let save = Entry::keyed("document-7", Duration::from_secs(1), "the latest text");
    /// # drop(
    /// save.debounce(Duration::from_secs(60))
    /// # );
    /// ```
    pub fn debounce(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Returns the row, given bounds of the store's clock.
    pub(crate) fn row(self, slot: u32, id: i64, now: RangeInclusive<StoreTime>) -> NewRow {
        let until = self
            .max_wait
            .map(|wait| When::After(wait).resolve(now.clone()));
        let due = self.when.resolve(now).min(until.unwrap_or(StoreTime::MAX));
        let planned = self.when.planned(due).filter(|_| until.is_none());
        let place = Place { due, slot, id };
        let Entry {
            key,
            tag,
            payload,
            keep,
            ..
        } = self;
        NewRow {
            place,
            key,
            tag,
            payload,
            keep,
            until,
            planned,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let names = self.key.iter().map(|key| ("key", key));
        let mut names = names.chain(self.tag.iter().map(|tag| ("tag", tag)));
        names.try_for_each(|(what, name)| check_name(what, name))?;
        check_payload(&self.payload)
    }
}

/// Checks the name of a key, tag or other item.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    match name.len() <= LONGEST_NAME && !name.contains('\0') {
        true => Ok(()),
        false => Err(bad_name(what, name, "at most 512, and no zero byte")),
    }
}

/// Returns the error for a name, with its first 40 characters and the rule.
pub(crate) fn bad_name(what: &str, name: &str, rule: &str) -> Error {
    let begin: String = name.chars().take(40).collect();
    let (more, bytes) = (
        if begin.len() < name.len() { "..." } else { "" },
        name.len(),
    );
    Error::BadName(format!(
        "the {what} {begin:?}{more} of {bytes} bytes: a {what} has {rule}"
    ))
}

pub(crate) fn check_payload(payload: &[u8]) -> Result<(), Error> {
    match payload.len() <= LONGEST_PAYLOAD {
        true => Ok(()),
        false => Err(Error::PayloadTooLong(payload.len())),
    }
}

/// A fencing token: which owner of a partition has claimed a timer.
///
/// A later owner has a greater epoch. An outside system that remembers the greatest epoch of each
/// partition, and refuses smaller epochs, is safe from a node that slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The partition of the namespace in which the timer lies. It never changes.
    pub partition: u32,
    /// The partition's epoch, which grows with each owner.
    pub epoch: i64,
}

/// A timer whose time has come, claimed for this handler.
#[derive(Clone)]
#[non_exhaustive]
pub struct Due {
    /// The key, if any.
    pub key: Option<String>,
    /// The tag, if any.
    pub tag: Option<String>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Identifies this timer; the same in each attempt.
    pub id: i64,
    /// When the timer was due.
    pub at: StoreTime,
    /// The first due time. `at` is later after a schedule in the past, a [spread](When::Spread), a
    /// [pause](crate::Durable::pause) or a retry.
    pub planned: StoreTime,
    /// The number of this attempt, from 1. Attempts that ended in a crash count, also if another
    /// timer may have caused the crash.
    pub attempt: u32,
    /// How much later than `at` the timer was claimed, by the store's clock.
    pub late_by: Duration,
    /// The fencing token.
    pub token: Token,
    /// The slot of the row.
    #[cfg(feature = "postgres")]
    pub(crate) slot: u32,
    /// The schema, unless the default.
    #[cfg(feature = "postgres")]
    pub(crate) schema: Option<Arc<str>>,
    /// The node, if it still exists.
    pub(crate) owner: Weak<dyn Any + Send + Sync>,
    /// Until when the handler may run, if limited.
    pub(crate) deadline: Option<Arc<Deadline>>,
}

impl Due {
    /// Lets the handler take so much longer from now on, under a
    /// [`time_limit`](crate::DurableBuilder::time_limit). Never shortens the time. The claim itself
    /// lasts as long as the node.
    pub fn extend(&self, by: Duration) {
        self.deadline
            .iter()
            .for_each(|deadline| deadline.extend(by));
    }
}

/// What became of a timer that was due.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Done: the row is deleted.
    Done,
    /// Failed for this reason, and tried again then. After the last attempt the timer is dead, with
    /// the reason.
    RetryAt(When, String),
    /// Failed for this reason, and tried again [after a while](crate::DurableBuilder::retry_after)
    /// that grows with each attempt. After the last attempt the timer is dead, with the reason.
    Failed(String),
    /// Done for now, and due again then, with this payload; attempts start anew. See
    /// [`Series`](crate::Series).
    Again(When, Vec<u8>),
    /// Never succeeds: the timer is dead, with this reason.
    Dead(String),
}

/// The answer to a committed schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduled {
    /// The key had no timer, or the entry has no key.
    New,
    /// The key's former timer was replaced. Its handler, if running, runs to the end, but its
    /// outcome changes nothing.
    Replaced,
    /// The key's timer was kept: see [`Entry::keep_existing`].
    Kept,
}

/// The answer to a cancel. Each answer is certain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The timer is gone, with this payload: no handler gets it.
    Cancelled(Vec<u8>),
    /// A handler has the timer, or had it when its node died. The timer ends with that run: it is
    /// neither retried nor due again, whatever the handler answers, unless scheduled anew.
    Running,
    /// The key has no timer.
    Unknown,
}

/// The answer to a touch. Each answer is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Touched {
    /// The timer is due at the new moment.
    Moved,
    /// A handler has the timer.
    Running,
    /// The key has no timer.
    Unknown,
}

/// A pending timer.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// When the timer is due.
    pub at: StoreTime,
    /// The payload.
    pub payload: Vec<u8>,
    /// How often the timer was claimed, without lost answers.
    pub attempts: u32,
    /// Whether a handler has the timer.
    pub running: bool,
}

/// Selects timers or dead timers: all of them, unless a method leaves some out.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tickwheel_durable::Search;
///
/// // The first hundred overdue timers of a customer that no handler has.
/// let long_ago = SystemTime::UNIX_EPOCH;
/// let overdue = Search::new(100).tag("customer-3").between(long_ago..SystemTime::now());
/// # drop(overdue.running(false));
/// ```
#[derive(Clone, Debug)]
pub struct Search {
    pub(crate) tag: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) running: Option<bool>,
    pub(crate) after: Place,
    pub(crate) before: Option<StoreTime>,
    pub(crate) limit: u32,
}

impl Search {
    /// Returns a search for all timers, limited to the first so many by time. An answer carries all
    /// payloads: if payloads are long, use a small limit.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let after = Place::before(StoreTime::MIN);
        Search {
            tag: None,
            prefix: None,
            running: None,
            after,
            before: None,
            limit,
        }
    }

    /// Leaves out timers without this tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Leaves out timers whose keys have another prefix.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Keeps timers that a handler has (`true`), or that none has (`false`). No handler has dead
    /// timers.
    #[must_use]
    pub fn running(mut self, running: bool) -> Self {
        self.running = Some(running);
        self
    }

    /// Leaves out timers that are due, or died, outside of this range.
    #[must_use]
    pub fn between(mut self, range: Range<SystemTime>) -> Self {
        self.after = self.after.max(Place::before(range.start.into()));
        self.before = Some(range.end.into());
        self
    }

    /// Continues after a listed timer: pass the last timer of the page.
    #[must_use]
    pub fn after(mut self, listed: impl Into<Place>) -> Self {
        self.after = self.after.max(listed.into());
        self
    }
}

impl From<&Listed> for Place {
    fn from(listed: &Listed) -> Self {
        listed.place
    }
}

impl From<&DeadTimer> for Place {
    /// Returns the place in the list, by the time of death.
    fn from(dead: &DeadTimer) -> Self {
        Place {
            due: dead.died,
            slot: dead.slot,
            id: dead.id,
        }
    }
}

/// A timer in a list.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Identifies this timer, as [`Due::id`] does.
    pub id: i64,
    /// The key, if any.
    pub key: Option<String>,
    /// The tag, if any.
    pub tag: Option<String>,
    /// The payload.
    pub payload: Vec<u8>,
    /// When the timer is due.
    pub at: StoreTime,
    /// How often the timer was claimed, without lost answers.
    pub attempts: u32,
    /// Whether a handler has the timer.
    pub running: bool,
    place: Place,
}

impl Listed {
    pub(crate) fn new(
        place: Place,
        key: Option<String>,
        tag: Option<String>,
        payload: Vec<u8>,
        (attempts, running): (u32, bool),
    ) -> Self {
        Listed {
            id: place.id,
            key,
            tag,
            payload,
            at: place.due,
            attempts,
            running,
            place,
        }
    }
}

/// A present pause: see [`pause`](crate::Durable::pause).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Paused {
    /// The tag whose timers are held; without a tag, all timers of the namespace are.
    pub tag: Option<String>,
    /// The end of the pause.
    pub until: StoreTime,
}

/// A timer that was given up.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadTimer {
    /// Identifies the timer, for [`requeue`](crate::Durable::requeue).
    pub id: i64,
    /// The key, if any.
    pub key: Option<String>,
    /// The payload.
    pub payload: Vec<u8>,
    /// The tag, if any.
    pub tag: Option<String>,
    /// How often the timer was claimed, without lost answers.
    pub attempts: u32,
    /// Why the timer was given up.
    pub reason: String,
    /// When the timer was given up. Before version 5 of the tables: when they were migrated.
    pub died: StoreTime,
    pub(crate) slot: u32,
}

/// Why a call failed. Clones share the cause.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The store could not be reached, or refused. Nothing was done.
    Unavailable(Arc<dyn StdError + Send + Sync>),
    /// The store rejects the call, for example because the database's encoding lacks a character.
    /// Nothing was done, and a repetition does not help.
    Refused(Arc<dyn StdError + Send + Sync>),
    /// The answer was lost: the call may have taken effect. With a key, repeating is safe.
    Uncertain(Arc<dyn StdError + Send + Sync>),
    /// The tables are of a version that this crate does not know: a later one, or one from before
    /// the first release.
    UnknownSchema {
        /// The version of the tables.
        found: i32,
        /// The version that this crate uses.
        known: i32,
    },
    /// A key, tag or namespace is longer than 512 bytes or has a zero byte, or a schema is no plain
    /// name. The text says which, and how it begins.
    BadName(String),
    /// A payload is longer than 1 MiB.
    PayloadTooLong(usize),
    /// Another node has claimed the timer since. Roll back.
    Fenced,
    /// The node was drained or dropped, or the `tickwheel` timer was shut down.
    Closed,
}

impl Error {
    pub(crate) fn unavailable(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Unavailable(Arc::from(cause.into()))
    }

    pub(crate) fn uncertain(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Uncertain(Arc::from(cause.into()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unavailable(cause) => write!(f, "the store is unavailable: {}", whole(cause)),
            Error::Refused(cause) => write!(f, "the store does not take it: {}", whole(cause)),
            Error::Uncertain(cause) => write!(f, "the store's answer was lost: {}", whole(cause)),
            Error::UnknownSchema { found, known } => {
                write!(
                    f,
                    "the tables are of version {found}; this crate uses {known}"
                )
            }
            Error::BadName(told) => f.write_str(told),
            Error::PayloadTooLong(bytes) => write!(f, "a payload of {bytes} bytes is too long"),
            Error::Fenced => f.write_str("another node has claimed the timer since"),
            Error::Closed => f.write_str("the node was drained, or its timer shut down"),
        }
    }
}

/// Returns an error with its causes: a database's reason is often the last.
fn whole(error: &Arc<dyn StdError + Send + Sync>) -> String {
    let mut next: Option<&dyn StdError> = Some(&**error);
    let causes = std::iter::from_fn(|| {
        let error = next?;
        next = error.source();
        Some(error.to_string())
    });
    causes.collect::<Vec<_>>().join(": ")
}

/// Has no source: the text includes the causes.
impl StdError for Error {}
