//! Stores of timers, and the operations that a node asks for.

mod alone;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(test)]
#[path = "../../tests/inside/conformance/mod.rs"]
pub(crate) mod conformance;
mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod states;

use crate::entry::{
    Cancelled, DeadTimer, Error, Listed, Paused, Scheduled, Search, Touched, check_payload,
};
use crate::when::{Moment, StoreTime, When};
use std::future::Future;
use std::time::Duration;

/// The name of a row: 'k' and the key; 'i' and a number that rises with time if the timer has no
/// key; 'd' and the timer's id if the timer is dead.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) String);

impl Name {
    pub(crate) fn of_key(key: &str) -> Self {
        Name(format!("k{key}"))
    }

    /// Returns the name of a timer without a key. Names of about the same time lie together in the
    /// index.
    pub(crate) fn unkeyed(id: i64) -> Self {
        let now = StoreTime::from(std::time::SystemTime::now()).as_micros();
        Name(format!("i{now:014x}{id:016x}"))
    }

    pub(crate) fn of_dead(id: i64) -> Self {
        Name(format!("d{id:016x}"))
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.0.strip_prefix('k')
    }
}

/// The place of a timer in the order of due times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// When the timer is due; of a dead timer, when it died.
    pub due: StoreTime,
    /// The timer's number: it decides among timers of one moment.
    pub id: i64,
}

impl Place {
    /// Returns the place before all places due at `due` or later.
    pub fn before(due: StoreTime) -> Self {
        Place { due, id: i64::MIN }
    }
}

/// Returns the earlier of two places, if there is one.
pub(crate) fn earlier(one: Option<Place>, other: Option<Place>) -> Option<Place> {
    one.into_iter().chain(other).min()
}

/// A timer to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewTimer {
    pub(crate) name: Name,
    pub(crate) id: i64,
    pub(crate) when: Moment,
    /// See [`Entry::debounce`](crate::Entry::debounce).
    pub(crate) max_wait: Option<Duration>,
    pub(crate) expires_after: Option<Duration>,
    pub(crate) tag: Option<String>,
    pub(crate) payload: Vec<u8>,
    /// Whether the key's present timer stays instead.
    pub(crate) keep: bool,
}

/// The answers to a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed<A> {
    /// The store's clock.
    pub(crate) now: StoreTime,
    /// The first place of the changed rows that can be claimed, now or later.
    pub(crate) first: Option<Place>,
    /// The answers, in order. `None` if another transaction has the row locked: nothing was done.
    pub(crate) answers: Vec<Option<A>>,
}

impl<A> Changed<A> {
    /// Returns the answer to a batch of one, whose row this transaction has locked.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn only(self) -> Result<A, Error> {
        let answer = self.answers.into_iter().next().flatten();
        answer.ok_or_else(|| Error::uncertain("there is no answer"))
    }
}

/// A node's request to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// The first place to be claimed. Rows before it are left to [`look`](Operations::look).
    pub(crate) from: Place,
    pub(crate) limit: u32,
    /// How many of the rows that pauses hold are put off at most. The others are passed over.
    pub(crate) holds: u32,
    /// How many bytes the payloads have at most together, unless it is one row.
    pub(crate) bytes: usize,
    pub(crate) lease: Duration,
}

/// A claimed timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) name: Name,
    pub(crate) token: i64,
    pub(crate) id: i64,
    pub(crate) due: StoreTime,
    pub(crate) planned: StoreTime,
    /// The number of this attempt, from 1. Attempts that ended in a crash which another timer may
    /// have caused do not count.
    pub(crate) attempts: u32,
    /// How many claims ran out.
    pub(crate) crashes: u32,
    pub(crate) tag: Option<String>,
    pub(crate) payload: Vec<u8>,
}

/// After this many crashes beside other timers a timer runs alone. Later crashes are its own fault,
/// and count as attempts.
pub(crate) const ALONE: u32 = 3;

/// The answer to a claim or a takeover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// The store's clock.
    pub(crate) now: StoreTime,
    pub(crate) rows: Vec<Claimed>,
    /// Where the next claim begins. All earlier rows are claimed, or were locked or passed over.
    pub(crate) from: Place,
    /// Whether more rows may be due: a limit was reached.
    pub(crate) more: bool,
    /// The first row that is not due yet. Of a takeover: the first row that it has freed.
    pub(crate) next: Option<Place>,
    /// How many timers have expired and were deleted.
    pub(crate) expired: u64,
    /// How many timers were put off, because pauses hold them.
    pub(crate) held: u64,
}

/// The answer to a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The store's clock.
    pub(crate) now: StoreTime,
    /// The first place that can be claimed, now or later.
    pub(crate) first: Option<Place>,
    /// Whether a pause holds that row.
    pub(crate) held: bool,
    /// Whether any claim has run out.
    pub(crate) lapsed: bool,
}

/// The renewal of a claim. The claim lasts for `term` from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) name: Name,
    pub(crate) token: i64,
    pub(crate) term: Duration,
}

/// How a claim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The timer is done.
    Done,
    /// The timer failed, and is due again then.
    Retry(Moment),
    /// The timer is due again then, with this payload, and its attempts begin anew.
    Again(Moment, Vec<u8>),
    /// The timer is dead, for this reason.
    Dead(String),
    /// The handler was never called, or a drain has dropped it: the claim counts as no attempt.
    GiveBack,
    /// The store has refused the outcome. The timer is due again after this delay.
    PutBack(Duration),
}

impl Ending {
    /// Returns the end of a run after which the timer is due again.
    pub(crate) fn again(when: When, payload: Vec<u8>) -> Result<Self, Error> {
        check_payload(&payload)?;
        Ok(Ending::Again(when.into(), payload))
    }
}

/// The acknowledgement of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) name: Name,
    pub(crate) token: i64,
    pub(crate) ending: Ending,
}

/// A change of many timers, in steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bulk {
    /// The tag's timers that no handler has are cancelled.
    Cancel(String),
    /// The tag's timers that no handler has are moved.
    Touch(String, Moment),
    /// Timers that a pause of the tag, or of all timers, has put off are due as before.
    Release(Option<String>),
    /// All dead timers, or those of a tag, are due now, and their attempts begin anew. Dead timers
    /// whose keys have timers again are left out.
    Requeue(Option<String>),
    /// The dead timer of this id is requeued, if there is one.
    RequeueOne(i64),
    /// All dead timers, or those of a tag, are deleted.
    Delete(Option<String>),
}

impl Bulk {
    /// Returns the tag of the timers, unless the change is for all.
    pub(crate) fn tag(&self) -> Option<&str> {
        match self {
            Bulk::Cancel(tag) | Bulk::Touch(tag, _) => Some(tag),
            Bulk::Release(tag) | Bulk::Requeue(tag) | Bulk::Delete(tag) => tag.as_deref(),
            Bulk::RequeueOne(_) => None,
        }
    }
}

/// The answer to a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// The store's clock.
    pub(crate) now: StoreTime,
    /// How many timers were changed.
    pub(crate) count: u64,
    /// The first place of the changed rows that can be claimed.
    pub(crate) first: Option<Place>,
    /// Whether rows were left out because another transaction has them locked.
    pub(crate) locked: bool,
    /// The last name of the step if the limit was reached: the next step begins after it.
    pub(crate) more: Option<Name>,
}

/// The future of a store's answer.
pub(crate) trait Answer<A>: Future<Output = Result<A, Error>> + Send {}

impl<A, F: Future<Output = Result<A, Error>> + Send> Answer<A> for F {}

/// The operations of a store on the timers of one namespace. [`states`] has a table of what each
/// operation does to a row, and answers.
///
/// An operation changes each row of its batch in one atomic step. A name stands once in a batch.
/// After [`Error::Unavailable`] or [`Error::Refused`] nothing was done; after [`Error::Uncertain`]
/// the operation may have been done. The store's clock decides what is due, and which claims have
/// run out.
pub(crate) trait Operations: Send + Sync + 'static {
    /// Writes timers in place of timers with the same names. With `tell`, wakes other nodes for
    /// timers that are due soon.
    fn schedule(&self, timers: Vec<NewTimer>, tell: bool) -> impl Answer<Changed<Scheduled>>;

    /// Cancels timers.
    fn cancel(&self, names: Vec<Name>) -> impl Answer<Changed<Cancelled>>;

    /// Moves timers. With `tell`, wakes other nodes as [`schedule`](Self::schedule) does.
    fn touch(&self, moves: Vec<(Name, Moment)>, tell: bool) -> impl Answer<Changed<Touched>>;

    /// Claims due rows in the order of their places, and deletes those that have expired. Passes
    /// over locked rows. Puts off the first rows that pauses hold, and passes over the others:
    /// claims with `limit` 0 put those off.
    fn claim(&self, want: Want) -> impl Answer<Claims>;

    /// Claims rows whose claims have run out. All of them were in the same number of crashes: the
    /// smallest one, if it is at most `most`. Claims up to `limit` rows that were in no crash, a
    /// tenth of `limit` after one crash, and a hundredth after more.
    fn take_over(&self, most: u32, limit: u32, lease: Duration) -> impl Answer<Claims>;

    /// Looks for the first free row, also for one that claims have passed over, and for claims that
    /// have run out.
    fn look(&self) -> impl Answer<Look>;

    /// Renews claims. Answers `false` if the claim is over.
    fn renew(&self, renewals: Vec<Renewal>) -> impl Answer<Changed<bool>>;

    /// Ends claims. Answers `false` if the claim is over. A repetition does nothing.
    fn acknowledge(&self, acks: Vec<Ack>) -> impl Answer<Changed<bool>>;

    /// Waits until another node tells of a row that can be claimed. `None`: no notices are heard,
    /// and the caller asks again later.
    fn told(&self) -> impl Future<Output = Option<Place>> + Send;

    /// Returns the timer of a name.
    fn get(&self, name: Name) -> impl Answer<Option<Listed>>;

    /// Lists timers in the order of their places.
    fn list(&self, search: Search) -> impl Answer<Vec<Listed>>;

    /// Lists dead timers in the order of their deaths.
    fn dead(&self, search: Search) -> impl Answer<Vec<DeadTimer>>;

    /// Changes the next `limit` timers after a name, without those that are locked.
    fn bulk(&self, bulk: Bulk, after: Option<Name>, limit: u32) -> impl Answer<Step>;

    /// Pauses all timers or those of a tag, or ends the pause. Timers that were put off stay put
    /// off until a [`Bulk::Release`].
    fn pause(&self, tag: Option<String>, until: Option<Moment>) -> impl Answer<()>;

    /// Lists the present pauses, in no order.
    fn pauses(&self) -> impl Answer<Vec<Paused>>;
}

/// A store of durable timers. The trait is sealed: [`memory`] and the databases implement it.
#[expect(
    private_bounds,
    reason = "sealed: what a node asks changes with the node"
)]
pub trait Store: Operations {}

impl<S: Operations> Store for S {}
