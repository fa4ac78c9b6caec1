//! What calls and handlers say and are told: entries, outcomes, answers, errors.

use crate::node::deadline::Deadline;
use crate::node::draw;
use crate::store::{NewRow, Place, StoreTime};
use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

/// The longest key, tag or namespace, in bytes: it stands in an index.
const LONGEST_NAME: usize = 512;
/// The longest payload, in bytes: a batch of the longest still fits in memory and in one message.
const LONGEST_PAYLOAD: usize = 1 << 20;

/// When a timer is due: at a moment, or some time from now by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this moment of the store's clock. What has passed is due now.
    At(SystemTime),
    /// This long after the call, by the store's clock, whatever this machine's shows. Longer than
    /// until the year 5138 is until then.
    After(Duration),
    /// At this moment, or up to so much later: each time at random, so that what is due at the same
    /// time is not all called at once. [`Due::planned`] is the moment itself.
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
    /// Resolves it, given bounds for what the store's clock shows. What has passed becomes the
    /// present: the sweeps that find what was missed need not look far back for it. It is none of
    /// the moments to which pauses put timers off: what is due at those is let go with a pause.
    pub(crate) fn resolve(self, now: RangeInclusive<StoreTime>) -> StoreTime {
        let due = match self {
            When::At(time) => StoreTime::from(time).max(*now.start()),
            When::After(delay) => now.end().plus(delay),
            When::Spread(time, by) => {
                let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
                let later = Duration::from_micros(draw() as u64 % micros);
                StoreTime::from(time).plus(later).max(*now.start())
            }
        };
        due.unmarked()
    }

    /// Returns the moment that was meant, if it is due at another one.
    pub(crate) fn planned(self, due: StoreTime) -> Option<StoreTime> {
        match self {
            When::At(time) | When::Spread(time, _) => Some(time.into()).filter(|it| *it != due),
            When::After(_) => None,
        }
    }
}

/// A timer to be scheduled: when it is due, what it carries, and by what it can be found again.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::Entry;
///
/// let reminder = Entry::keyed("cart-7", Duration::from_secs(3600), "you left something");
/// let reminder = reminder.tag("customer-3");
/// // Cheaper, where nobody will cancel it by name:
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
    /// Returns an entry with a key, of which there is at most one in a namespace: to schedule it
    /// again replaces it. Keys are at most 512 bytes, without a zero byte.
    pub fn keyed(
        key: impl Into<String>,
        when: impl Into<When>,
        payload: impl Into<Vec<u8>>,
    ) -> Self {
        Entry { key: Some(key.into()), ..Entry::unkeyed(when, payload) }
    }

    /// Returns an entry without a key: cheaper, but only its [tag](Self::tag) can cancel it.
    pub fn unkeyed(when: impl Into<When>, payload: impl Into<Vec<u8>>) -> Self {
        let (when, payload) = (when.into(), payload.into());
        Entry { key: None, tag: None, when, payload, keep: false, max_wait: None }
    }

    /// Sets the tag by which many timers can be cancelled at once; at most 512 bytes, without a
    /// zero byte.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Leaves the key's timer as it is, if there is one, also one that a handler has: this one is
    /// then not scheduled, and the answer is [`Scheduled::Kept`].
    pub fn keep_existing(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Debounces: each schedule of the key replaces its timer and so puts it off, but not to later
    /// than `max_wait` after the first of these. It begins anew once a handler has the timer, and
    /// where something else than a debounce has scheduled it. To have it fire at once,
    /// [`touch`](crate::Durable::touch) its key with [`Duration::ZERO`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_durable::Entry;
    ///
    /// // A second after the last change to a document, and at least each minute.
    /// let save = Entry::keyed("document-7", Duration::from_secs(1), "the latest text");
    /// # drop(
    /// save.debounce(Duration::from_secs(60))
    /// # );
    /// ```
    pub fn debounce(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Returns its row, given bounds for what the store's clock shows.
    pub(crate) fn row(self, slot: u32, id: i64, now: RangeInclusive<StoreTime>) -> NewRow {
        let until = self.max_wait.map(|wait| When::After(wait).resolve(now.clone()));
        let due = self.when.resolve(now).min(until.unwrap_or(StoreTime::MAX));
        let planned = self.when.planned(due).filter(|_| until.is_none());
        let place = Place { due, slot, id };
        let Entry { key, tag, payload, keep, .. } = self;
        NewRow { place, key, tag, payload, keep, until, planned }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let names = self.key.iter().map(|key| ("key", key));
        let mut names = names.chain(self.tag.iter().map(|tag| ("tag", tag)));
        names.try_for_each(|(what, name)| check_name(what, name))?;
        check_payload(&self.payload)
    }
}

/// Checks the name of a key, or of what else there is.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    match name.len() <= LONGEST_NAME && !name.contains('\0') {
        true => Ok(()),
        false => Err(bad_name(what, name, "at most 512, and no zero byte")),
    }
}

/// Tells what is named so, at most by the first of its characters, and what such a thing has.
pub(crate) fn bad_name(what: &str, name: &str, rule: &str) -> Error {
    let begin: String = name.chars().take(40).collect();
    let (more, bytes) = (if begin.len() < name.len() { "..." } else { "" }, name.len());
    Error::BadName(format!("the {what} {begin:?}{more} of {bytes} bytes: a {what} has {rule}"))
}

pub(crate) fn check_payload(payload: &[u8]) -> Result<(), Error> {
    match payload.len() <= LONGEST_PAYLOAD {
        true => Ok(()),
        false => Err(Error::PayloadTooLong(payload.len())),
    }
}

/// Says who claimed a timer: the partition and how many owners that has had.
///
/// A later owner's epoch is greater. An outside system that remembers the greatest epoch it has
/// seen for each partition, and refuses smaller ones, is safe from a node that slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The partition of its namespace in which the timer lies, for as long as it exists.
    pub partition: u32,
    /// The partition's epoch: it grows by one with each owner.
    pub epoch: i64,
}

/// A timer whose time has come, claimed for this handler.
#[derive(Clone)]
#[non_exhaustive]
pub struct Due {
    /// The key, if it has one.
    pub key: Option<String>,
    /// Its tag, if it has one: for what follows.
    pub tag: Option<String>,
    /// What was scheduled with it.
    pub payload: Vec<u8>,
    /// Tells this timer from all others; the same in each attempt.
    pub id: i64,
    /// When it was due.
    pub at: StoreTime,
    /// When it was due at first: `at` is later if that had passed when it was scheduled, or was
    /// [spread](When::Spread), if it was held back by a [pause](crate::Durable::pause), or if it is
    /// tried again.
    pub planned: StoreTime,
    /// Which attempt this is: 1 at first. One that was in a crash counts, also where another timer
    /// may have brought the process down: before the first one no handler has begun.
    pub attempt: u32,
    /// How much later than `at` it was claimed, by the store's clock.
    pub late_by: Duration,
    /// The fencing token.
    pub token: Token,
    /// Where its row lies in the store.
    #[cfg(feature = "postgres")]
    pub(crate) slot: u32,
    /// And in which schema, if that is another one than usual.
    #[cfg(feature = "postgres")]
    pub(crate) schema: Option<Arc<str>>,
    /// The node that has it, if it is still there.
    pub(crate) owner: Weak<dyn Any + Send + Sync>,
    /// Until when its handler may take, if there is a limit.
    pub(crate) deadline: Option<Arc<Deadline>>,
}

impl Due {
    /// Lets the handler take so much longer, from now on, where a
    /// [`time_limit`](crate::DurableBuilder::time_limit) is set: a heartbeat of one that takes long
    /// and makes progress. It never shortens the time. The claim itself lasts as long as the node.
    pub fn extend(&self, by: Duration) {
        self.deadline.iter().for_each(|deadline| deadline.extend(by));
    }
}

/// What became of a timer that was due.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done: its row is deleted.
    Done,
    /// It failed for this reason: the same again, then. After the last attempt it goes to the dead
    /// ones instead, with the reason.
    RetryAt(When, String),
    /// It failed for this reason: the same again
    /// [after a while](crate::DurableBuilder::retry_after), which grows with each attempt. After
    /// the last attempt it goes to the dead ones instead, with the reason.
    Failed(String),
    /// It is done for this time, and due again then, with this payload; attempts start anew. See
    /// [`Series`](crate::Series).
    Again(When, Vec<u8>),
    /// It will never succeed: it goes to the dead ones, with this reason.
    Dead(String),
}

/// What became of a schedule, once it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduled {
    /// There was no timer of this key, or the entry has none.
    New,
    /// The key's former timer was replaced. If that one's handler was running, it still runs to its
    /// end, but its outcome changes nothing any more.
    Replaced,
    /// The key's timer was left as it is: see [`Entry::keep_existing`].
    Kept,
}

/// What became of a cancel. Each answer is certain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The timer is gone, here is its payload; no handler will get it.
    Cancelled(Vec<u8>),
    /// A handler has it, or had it when its node died: too late, but it ends with that run. It is
    /// neither retried nor due again, whatever its handler answers, unless it is scheduled anew.
    Running,
    /// The key has no timer.
    Unknown,
}

/// What became of a touch. Each answer is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Touched {
    /// The timer is due at the new moment.
    Moved,
    /// A handler has it: too late to move it.
    Running,
    /// The key has no timer.
    Unknown,
}

/// How a timer stands.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// When it is due.
    pub at: StoreTime,
    /// What it carries.
    pub payload: Vec<u8>,
    /// How often it was claimed; where the answer was lost that does not count.
    pub attempts: u32,
    /// Whether a handler has it.
    pub running: bool,
}

/// What to look for among timers, or among those that were given up: all, but for what is said.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tickwheel_durable::Search;
///
/// // The first hundred timers of a customer that are overdue, and whom no handler has.
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
    /// Returns a search for all timers, of which it lists the first so many by their times. One
    /// answer has the payloads of all of them: where those are long, ask for few.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let after = Place::before(StoreTime::MIN);
        Search { tag: None, prefix: None, running: None, after, before: None, limit }
    }

    /// Leaves out timers without this tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Leaves out timers whose keys do not begin so.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Leaves out timers that a handler has, or those that none has, as all that were given up.
    #[must_use]
    pub fn running(mut self, running: bool) -> Self {
        self.running = Some(running);
        self
    }

    /// Leaves out timers that are due, or were given up, outside of these moments.
    #[must_use]
    pub fn between(mut self, range: Range<SystemTime>) -> Self {
        self.after = self.after.max(Place::before(range.start.into()));
        self.before = Some(range.end.into());
        self
    }

    /// Goes on after a timer that was listed: the last one, for the next page.
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
    /// Returns where it is listed: by the time at which it was given up.
    fn from(dead: &DeadTimer) -> Self {
        Place { due: dead.died, slot: dead.slot, id: dead.id }
    }
}

/// A timer that was found.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Tells this timer from all others, as [`Due::id`] does.
    pub id: i64,
    /// The key, if it has one.
    pub key: Option<String>,
    /// Its tag, if it has one.
    pub tag: Option<String>,
    /// What it carries.
    pub payload: Vec<u8>,
    /// When it is due.
    pub at: StoreTime,
    /// How often it was claimed; where the answer was lost that does not count.
    pub attempts: u32,
    /// Whether a handler has it.
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
        Listed { id: place.id, key, tag, payload, at: place.due, attempts, running, place }
    }
}

/// A pause that is not over: see [`pause`](crate::Durable::pause).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Paused {
    /// The tag whose timers it holds; all of the namespace if there is none.
    pub tag: Option<String>,
    /// Until when.
    pub until: StoreTime,
}

/// A timer that was given up: it waits for somebody to look at it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadTimer {
    /// Names it, for [`requeue`](crate::Durable::requeue).
    pub id: i64,
    /// The key, if it has one.
    pub key: Option<String>,
    /// What it carries.
    pub payload: Vec<u8>,
    /// Its tag, if it has one.
    pub tag: Option<String>,
    /// How often it was claimed; where the answer was lost that does not count.
    pub attempts: u32,
    /// Why it was given up.
    pub reason: String,
    /// When it was given up; before the tables told, when they were brought up to date.
    pub died: StoreTime,
    pub(crate) slot: u32,
}

/// Why a call failed. Cloning shares the cause: one batch may fail for many callers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The store could not be reached, or refused. What was asked for was not done.
    Unavailable(Arc<dyn StdError + Send + Sync>),
    /// The store does not take what was asked for, as where a database's encoding has no such
    /// character: nothing was done, and to ask again is no use.
    Refused(Arc<dyn StdError + Send + Sync>),
    /// The answer was lost: what was asked for was done, or was not. With a key it is safe to ask
    /// again: the same key is replaced, not doubled.
    Uncertain(Arc<dyn StdError + Send + Sync>),
    /// The store's tables are of a later version of this crate: it does not touch them.
    NewerSchema {
        /// The version of the tables.
        found: i32,
        /// The latest version that this crate knows.
        known: i32,
    },
    /// A key, a tag or a namespace is longer than 512 bytes, or holds a zero byte, which
    /// PostgreSQL does not store; or a schema is no plain name. This says which, and how it begins.
    BadName(String),
    /// A payload is longer than 1 MiB: keep it elsewhere, and schedule its name.
    PayloadTooLong(usize),
    /// The timer's row is no longer this claim's: another node has claimed it since. Roll back.
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
            Error::NewerSchema { found, known } => {
                write!(f, "the tables are of version {found}; this crate knows {known}")
            }
            Error::BadName(told) => f.write_str(told),
            Error::PayloadTooLong(bytes) => write!(f, "a payload of {bytes} bytes is too long"),
            Error::Fenced => f.write_str("another node has claimed the timer since"),
            Error::Closed => f.write_str("the node was drained, or its timer shut down"),
        }
    }
}

/// Tells an error with what caused it: a database's own reason is often the last of these.
fn whole(error: &Arc<dyn StdError + Send + Sync>) -> String {
    let mut next: Option<&dyn StdError> = Some(&**error);
    let causes = std::iter::from_fn(|| {
        let error = next?;
        next = error.source();
        Some(error.to_string())
    });
    causes.collect::<Vec<_>>().join(": ")
}

/// Has no source: an error tells its causes itself.
impl StdError for Error {}
