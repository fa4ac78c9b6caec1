//! Entries, outcomes, answers and errors.

use crate::node::keeper::Lease;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::store::{Ack, Ending};
use crate::store::{Name, NewTimer, Place};
use crate::sync::next_id;
use crate::when::{StoreTime, When};
use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::iter;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest key, tag or namespace, in bytes.
const LONGEST_NAME: usize = 512;
/// The longest payload, in bytes.
const LONGEST_PAYLOAD: usize = 1 << 20;

/// A timer to be scheduled.
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable::Entry;
///
/// let reminder = Entry::keyed("cart-7", Duration::from_secs(3600), "you left something");
/// let reminder = reminder.tag("customer-3");
/// // If nobody cancels the timer by a key:
/// let message = Entry::unkeyed(Duration::from_millis(250), [1, 2, 3]);
/// # drop((reminder, message));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an entry does nothing unless it is scheduled"]
pub struct Entry {
    pub(crate) key: Option<String>,
    pub(crate) tag: Option<String>,
    pub(crate) when: When,
    pub(crate) payload: Vec<u8>,
    keep: bool,
    max_wait: Option<Duration>,
    expires_after: Option<Duration>,
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

    /// Returns an entry without a key: only its [tag](Self::tag) can cancel or move the timer.
    pub fn unkeyed(when: impl Into<When>, payload: impl Into<Vec<u8>>) -> Self {
        Entry {
            key: None,
            tag: None,
            when: when.into(),
            payload: payload.into(),
            keep: false,
            max_wait: None,
            expires_after: None,
        }
    }

    /// Sets the tag, by which many timers can be cancelled at once: at most 512 bytes, and no zero
    /// byte.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Keeps the key's present timer, also while a handler has it. The answer is then
    /// [`Scheduled::Kept`]. A timer that was cancelled while a handler had it, or that has
    /// [expired](Self::expires_after), is not kept: the answer is [`Scheduled::Replaced`].
    pub fn keep_existing(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Debounces: each schedule of the key puts its timer off, up to `max_wait` after the first
    /// schedule, which bounds its own delay too. The debounce begins anew once a handler has the
    /// timer, and after a schedule without debounce. To fire at once,
    /// [`touch`](crate::Durable::touch) the key with [`Duration::ZERO`].
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

    /// Ends the timer unrun if no handler has begun with it so long after its
    /// [planned](Due::planned) time, by the store's clock: after an outage nobody wants yesterday's
    /// reminders. A run that has begun goes on. Retries do not renew the time;
    /// [`touch`](crate::Durable::touch) and [`Outcome::Again`] do.
    ///
    /// The end takes no place among those in flight, and is counted in
    /// [`Stats::expired`](crate::Stats::expired). A series ends with a run that expires.
    pub fn expires_after(mut self, delay: Duration) -> Self {
        self.expires_after = Some(delay);
        self
    }

    /// Returns what the store is told, once the entry was checked.
    pub(crate) fn timer(self) -> Result<NewTimer, Error> {
        let id = next_id();
        let name = match &self.key {
            Some(key) => {
                check_name("key", key)?;
                Name::of_key(key)
            }
            None => Name::unkeyed(id),
        };
        if let Some(tag) = &self.tag {
            check_name("tag", tag)?;
        }
        check_payload(&self.payload)?;
        Ok(NewTimer {
            name,
            id,
            when: self.when.into(),
            max_wait: self.max_wait,
            expires_after: self.expires_after,
            tag: self.tag,
            payload: self.payload,
            keep: self.keep,
        })
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
    let bytes = name.len();
    let more = if begin.len() < bytes { "..." } else { "" };
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
    /// Identifies this timer: the same in each attempt, after [`Outcome::Again`], and after a
    /// requeue. With [`planned`](Self::planned) it identifies one run of a series, unless a touch
    /// moves a retry.
    pub id: i64,
    /// When the timer was due.
    pub at: StoreTime,
    /// The first due time. `at` is later after a schedule in the past, a [spread](When::Spread), a
    /// [pause](crate::Durable::pause) or a retry, after the run of the key's former timer, and if a
    /// claim was given back: it was answered too late, or a drain did not wait for the handler.
    pub planned: StoreTime,
    /// The number of this attempt, from 1. Attempts that ended in a crash which another timer may
    /// have caused do not count.
    pub attempt: u32,
    /// How much later than `at` the timer was claimed, by the store's clock.
    pub late_by: Duration,
    /// The fencing token. A later claim of the same key has a greater token, as long as the store's
    /// clock is not set back: an outside system that remembers the greatest token of each key, and
    /// refuses smaller ones, is safe from a node that slept.
    pub token: i64,
    /// The name of the row in the store, for `tickwheel.ack` in SQL.
    pub name: String,
    /// The node, if it still exists.
    pub(crate) owner: Weak<dyn Any + Send + Sync>,
    /// Until when the claim lasts.
    pub(crate) lease: Arc<Lease>,
}

impl Due {
    /// Returns whether the claim is over, as far as this node knows: it has run out, as the store
    /// did not answer its renewals, or the store has refused to renew it. Another node may have the
    /// timer by now, and this handler's outcome changes nothing then. A handler whose effects
    /// cannot be fenced by the [token](Self::token) asks before each of them.
    ///
    /// The answer may be `true` as well after an acknowledgement in a transaction.
    pub fn is_lost(&self) -> bool {
        self.lease.has_ended()
    }

    /// Returns the acknowledgement that ends this claim.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn ack(&self, ending: Ending) -> Ack {
        Ack {
            name: Name(self.name.clone()),
            token: self.token,
            ending,
        }
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
    /// Done for now, and due again then, with this payload; attempts start anew. A payload over
    /// 1 MiB makes the timer dead instead. See [`Series`](crate::Series).
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
    /// outcome changes nothing, and the new timer waits for that end.
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
    /// A handler has the timer, or had it when its node died: then the timer is run once more. The
    /// timer ends with that run: it is neither retried nor due again, whatever the handler answers.
    /// The run is certain unless the key is scheduled again, also before this call, or the timer
    /// [expires](Entry::expires_after), before a handler has it; and unless the run that crashed
    /// was the last that [`max_attempts`](crate::DurableBuilder::max_attempts) allows.
    Running,
    /// The key has no timer. A `schedule` that was [uncertain](Error::Uncertain) may still commit
    /// one: repeat that call until it is answered, and then cancel.
    Unknown,
}

/// The answer to a touch. Each answer is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Touched {
    /// The timer is due at the new moment.
    Moved,
    /// A handler has the timer, or the timer was cancelled while a handler had it.
    Running,
    /// The key has no timer.
    Unknown,
}

/// Selects timers or dead timers: all of them, unless a method leaves some out.
///
/// ```
/// use std::time::SystemTime;
/// use tickwheel_durable::Search;
/// use tickwheel_durable::store::Place;
///
/// // The first hundred timers of a customer that are due from now on.
/// let now = Place::before(SystemTime::now().into());
/// let search = Search::new(100).tag("customer-3").after(now);
/// # drop(search);
/// ```
#[derive(Clone, Debug)]
pub struct Search {
    pub(crate) tag: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) after: Place,
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
            after,
            limit,
        }
    }

    /// Leaves out timers without this tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Leaves out timers without a key, and those whose keys have another prefix.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Begins after a place. To continue, pass the last timer of the page; to begin at a time, pass
    /// [`Place::before`] it.
    #[must_use]
    pub fn after(mut self, listed: impl Into<Place>) -> Self {
        self.after = self.after.max(listed.into());
        self
    }

    /// Returns whether the search keeps a timer, whoever has it.
    pub(crate) fn fits(&self, place: Place, key: &Option<String>, tag: &Option<String>) -> bool {
        let has_prefix = |prefix: &String| key.as_ref().is_some_and(|key| key.starts_with(prefix));
        place > self.after
            && (self.tag.is_none() || self.tag == *tag)
            && self.prefix.as_ref().is_none_or(has_prefix)
    }
}

impl From<&Listed> for Place {
    fn from(listed: &Listed) -> Self {
        Place {
            due: listed.at,
            id: listed.id,
        }
    }
}

impl From<&DeadTimer> for Place {
    /// Returns the place in the list, by the time of death.
    fn from(dead: &DeadTimer) -> Self {
        Place {
            due: dead.died,
            id: dead.id,
        }
    }
}

/// A timer that waits, or that a handler has.
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
    /// How many attempts were begun: see [`Due::attempt`].
    pub attempts: u32,
    /// Whether a handler has the key. If a later timer of the key waits for the end of the run, all
    /// other fields are those of the later timer.
    pub running: bool,
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
    /// How many attempts were begun: see [`Due::attempt`].
    pub attempts: u32,
    /// Why the timer was given up: at most 8 KiB, without zero bytes.
    pub reason: String,
    /// When the timer was given up.
    pub died: StoreTime,
}

/// Why a call failed. Clones share the cause.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The store cannot be reached, or cannot do this at present: its disk is full, for example, or
    /// a transaction has the timer locked. Nothing was done: try again later.
    Unavailable(Arc<dyn StdError + Send + Sync>),
    /// The store rejects the call, for example because a check of yours on the table does. Nothing
    /// was done, and a repetition does not help.
    Refused(Arc<dyn StdError + Send + Sync>),
    /// The answer was lost: the call may have taken effect. With a key, repeating is safe.
    Uncertain(Arc<dyn StdError + Send + Sync>),
    /// The tables are of another version; or there are none, with `existing_tables`.
    UnknownSchema {
        /// The version of the tables; 0 if there are none.
        found: i32,
        /// The version that this crate uses.
        known: i32,
    },
    /// A key, tag or namespace is longer than 512 bytes or has a zero byte, or a schema is no plain
    /// name. The text says which, and how it begins.
    BadName(String),
    /// A payload is longer than 1 MiB.
    PayloadTooLong(usize),
    /// The claim is over: another handler has the timer by now, or the timer has ended. Roll back.
    Fenced,
    /// The node was drained or dropped, or the `tickwheel` timer was shut down.
    Closed,
}

impl Error {
    pub(crate) fn unavailable(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Unavailable(Arc::from(cause.into()))
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn refused(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Refused(Arc::from(cause.into()))
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
            Error::UnknownSchema { found: 0, .. } => f.write_str("there are no tables of timers"),
            Error::UnknownSchema { found, known } => {
                write!(
                    f,
                    "the tables are of version {found}; this crate uses {known}"
                )
            }
            Error::BadName(told) => f.write_str(told),
            Error::PayloadTooLong(bytes) => write!(f, "a payload of {bytes} bytes is over 1 MiB"),
            Error::Fenced => f.write_str("another handler has the timer by now, or it has ended"),
            Error::Closed => f.write_str("the node was drained, or its timer shut down"),
        }
    }
}

/// Returns an error with its causes: a database's reason is often the last.
fn whole(error: &Arc<dyn StdError + Send + Sync>) -> String {
    let first: &dyn StdError = &**error;
    let errors = iter::successors(Some(first), |error| (**error).source());
    let causes = errors.map(ToString::to_string);
    causes.collect::<Vec<_>>().join(": ")
}

/// Has no source: the text includes the causes.
impl StdError for Error {}
