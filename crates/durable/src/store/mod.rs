//! Stores of timers, and what a node asks of them.

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
    Cancelled, DeadTimer, Error, Listed, Paused, Pending, Scheduled, Search, Touched,
};
use crate::when::{Moment, StoreTime};
use std::future::Future;
use std::time::Duration;

/// Names a row: 'k' and the key; without a key 'i' and a number that rises with time; dead 'd' and
/// the timer's id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) String);

impl Name {
    pub(crate) fn of_key(key: &str) -> Self {
        Name(format!("k{key}"))
    }

    /// Names a row without a key. The names of one time lie together in the index.
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

/// Where a timer lies in the order of due times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// When the timer is due; of a dead one, when it died.
    pub due: StoreTime,
    /// The timer's number, drawn at random.
    pub id: i64,
}

impl Place {
    /// Returns the place before all places due at `due` or later.
    pub fn before(due: StoreTime) -> Self {
        Place { due, id: i64::MIN }
    }
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

/// A batch's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed<A> {
    /// The store's clock.
    pub(crate) now: StoreTime,
    /// The first of the changed rows that can be claimed now or later.
    pub(crate) first: Option<Place>,
    /// The answers, in order. `None` for a row that a transaction has locked: nothing was done.
    pub(crate) answers: Vec<Option<A>>,
}

impl<A> Changed<A> {
    /// Returns the answer of a batch of one that nobody had locked.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn only(self) -> Result<A, Error> {
        let answer = self.answers.into_iter().next().flatten();
        answer.ok_or_else(|| Error::uncertain("there is no answer"))
    }
}

/// What a node wants to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// Rows before this place are left to [`look`](Operations::look).
    pub(crate) from: Place,
    pub(crate) limit: u32,
    /// How many rows are put off that pauses hold, at most. The others are passed over.
    pub(crate) holds: u32,
    /// How many bytes the payloads may have in all, unless it is one row.
    pub(crate) bytes: usize,
    pub(crate) lease: Duration,
}

/// A timer that was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) name: Name,
    pub(crate) token: i64,
    pub(crate) id: i64,
    pub(crate) due: StoreTime,
    pub(crate) planned: StoreTime,
    /// How many attempts were begun, this one included, without those that ended in a crash which
    /// another timer may have caused.
    pub(crate) attempts: u32,
    /// How many claims ran out.
    pub(crate) crashes: u32,
    pub(crate) tag: Option<String>,
    pub(crate) payload: Vec<u8>,
}

/// After this many crashes beside other timers a timer runs alone. Later crashes are its own, and
/// count as its attempts.
pub(crate) const ALONE: u32 = 3;

/// What came of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// The store's clock.
    pub(crate) now: StoreTime,
    pub(crate) rows: Vec<Claimed>,
    /// Where the next claim begins: all before it that was not locked is claimed.
    pub(crate) from: Place,
    /// Whether more rows are due: the limit was reached, or so many held rows were met.
    pub(crate) more: bool,
    /// The first row that is not due yet, or that a takeover has freed.
    pub(crate) next: Option<Place>,
    /// How many timers had expired, and ended.
    pub(crate) expired: u64,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The store's clock.
    pub(crate) now: StoreTime,
    /// The first row that can be claimed, now or later.
    pub(crate) first: Option<Place>,
    /// Whether a pause holds that row.
    pub(crate) held: bool,
    /// Whether claims have run out.
    pub(crate) lapsed: bool,
}

/// A claim to be renewed for so long from now on.
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
    /// The timer is due again then, with this payload and no attempts.
    Again(Moment, Vec<u8>),
    /// The timer is dead, for this reason.
    Dead(String),
    /// The handler was never called: the claim counts as no attempt.
    GiveBack,
    /// The store has refused how the claim ended. The timer is due again after so long.
    PutBack(Duration),
}

/// The acknowledgement of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) name: Name,
    pub(crate) token: i64,
    pub(crate) ending: Ending,
}

/// A change to many timers, in steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bulk {
    /// The tag's timers that no handler has are cancelled.
    Cancel(String),
    /// The tag's timers that no handler has are moved, in the order of their names.
    Touch(String, Moment),
    /// Timers that a pause of the tag, or of all, has put off are due as before.
    Release(Option<String>),
    /// Dead timers, all or of a tag, that died no later than then are due now, with no attempts.
    /// Timers whose keys have timers again are left out.
    Requeue(Option<String>, StoreTime),
    /// The dead timer of this id is requeued, if there is one.
    RequeueOne(i64),
    /// Dead timers, all or of a tag, that died no later than then are deleted.
    Delete(Option<String>, StoreTime),
}

impl Bulk {
    /// Returns the tag of the timers, unless the change is for all.
    pub(crate) fn tag(&self) -> Option<&str> {
        match self {
            Bulk::Cancel(tag) | Bulk::Touch(tag, _) => Some(tag),
            Bulk::Release(tag) | Bulk::Requeue(tag, _) | Bulk::Delete(tag, _) => tag.as_deref(),
            Bulk::RequeueOne(_) => None,
        }
    }

    /// Has later steps mean the same moment as one that was taken then.
    pub(crate) fn fix(&mut self, now: StoreTime) {
        match self {
            Bulk::Touch(_, moment) => {
                moment.at = moment.due(now);
                moment.after = Duration::ZERO;
            }
            Bulk::Requeue(_, latest) | Bulk::Delete(_, latest) => *latest = (*latest).min(now),
            Bulk::Cancel(_) | Bulk::Release(_) | Bulk::RequeueOne(_) => {}
        }
    }
}

/// What became of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// The store's clock.
    pub(crate) now: StoreTime,
    /// How many timers were changed.
    pub(crate) count: u64,
    /// The first of the changed rows that can be claimed.
    pub(crate) first: Option<Place>,
    /// Whether rows were left out because a transaction has locked them.
    pub(crate) locked: bool,
    /// The last row of the step if the limit was reached: the next step begins after it.
    pub(crate) more: Option<Name>,
}

/// The future of a store's answer.
pub(crate) trait Answer<A>: Future<Output = Result<A, Error>> + Send {}

impl<A, F: Future<Output = Result<A, Error>> + Send> Answer<A> for F {}

/// What a store does for the nodes of one namespace. [`states`] says what each operation does to a
/// row, and answers.
///
/// Each operation is one atomic step for each row in its batch, in which a name stands once. After
/// [`Error::Unavailable`] or [`Error::Refused`] nothing was done; after [`Error::Uncertain`] the
/// operation may be done. The store's clock decides what is due and which claims have run out.
pub(crate) trait Operations: Send + Sync + 'static {
    /// Returns the namespace.
    fn space(&self) -> &str;

    /// Writes timers, in place of timers with the same names; wakes other nodes for those due soon
    /// if `tell` says so.
    fn schedule(&self, timers: Vec<NewTimer>, tell: bool) -> impl Answer<Changed<Scheduled>>;

    /// Cancels timers.
    fn cancel(&self, names: Vec<Name>) -> impl Answer<Changed<Cancelled>>;

    /// Moves timers; wakes other nodes as [`schedule`](Self::schedule) does.
    fn touch(&self, moves: Vec<(Name, Moment)>, tell: bool) -> impl Answer<Changed<Touched>>;

    /// Claims rows that are due, in the order of their places. Puts off some of what pauses hold,
    /// and ends what has expired. Passes over the other held rows, as over rows that are locked:
    /// a claim with `limit` 0 has them put off.
    fn claim(&self, want: Want) -> impl Answer<Claims>;

    /// Claims rows whose claims have run out: those with the fewest crashes, if that is `most` or
    /// less. Claims up to `limit` rows that were in no crash, a tenth of `limit` after one crash,
    /// and a hundredth after more.
    fn take_over(&self, most: u32, limit: u32, lease: Duration) -> impl Answer<Claims>;

    /// Looks for the first row, which a claim may have passed over: rows that were locked, or that
    /// no node was told of.
    fn look(&self) -> impl Answer<Look>;

    /// Renews claims; `false` for one that is another's.
    fn renew(&self, renewals: Vec<Renewal>) -> impl Answer<Changed<bool>>;

    /// Ends claims; `false` for one that is another's. Repeating is harmless.
    fn acknowledge(&self, acks: Vec<Ack>) -> impl Answer<Changed<bool>>;

    /// Waits until another node has told of a row that can be claimed. `None`: nothing is heard,
    /// ask again later.
    fn told(&self) -> impl Future<Output = Option<Place>> + Send;

    /// Looks a name up.
    fn get(&self, name: Name) -> impl Answer<Option<Pending>>;

    /// Lists timers in the order of their places.
    fn list(&self, search: Search) -> impl Answer<Vec<Listed>>;

    /// Lists dead timers in the order of their deaths.
    fn dead(&self, search: Search) -> impl Answer<Vec<DeadTimer>>;

    /// Changes the next `limit` timers after a name that nobody has locked.
    fn bulk(&self, bulk: Bulk, after: Option<Name>, limit: u32) -> impl Answer<Step>;

    /// Pauses all timers, or those of a tag, or ends the pause. Timers that were put off stay so
    /// until a [`Bulk::Release`].
    fn pause(&self, tag: Option<String>, until: Option<Moment>) -> impl Answer<()>;

    /// Lists the pauses that are not over, in no order.
    fn pauses(&self) -> impl Answer<Vec<Paused>>;
}

/// A store of durable timers. The trait is sealed: [`memory`] and the databases implement it.
#[expect(
    private_bounds,
    reason = "sealed: what a node asks changes with the node"
)]
pub trait Store: Operations {}

impl<S: Operations> Store for S {}
