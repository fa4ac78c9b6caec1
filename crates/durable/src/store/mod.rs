//! Stores of timers, and what a node needs of them.

pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use crate::entry::{
    Cancelled, DeadTimer, Error, Listed, Paused, Pending, Scheduled, Search, Touched,
};
use std::future::Future;
#[cfg(feature = "postgres")]
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Names a node for the time of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub i64);

/// Where the row of a timer lies. Ordered by due time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// When it is due.
    pub due: StoreTime,
    /// Its slot, which one node owns at a time.
    pub slot: u32,
    /// Its number, drawn at random.
    pub id: i64,
}

impl Place {
    /// Returns the place before all places due at `due` or later.
    pub fn before(due: StoreTime) -> Self {
        Place {
            due,
            slot: 0,
            id: i64::MIN,
        }
    }
}

/// The first `limit` places in a few slots, after `after` and due before `before`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The slots.
    pub slots: Vec<u32>,
    /// The place before the first.
    pub after: Place,
    /// The due time at which the page ends.
    pub before: StoreTime,
    /// How many, at most.
    pub limit: u32,
}

/// Adjacent intervals for counting timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bars {
    /// When the first begins.
    pub from: StoreTime,
    /// How long each is.
    pub width: Duration,
    /// How many there are.
    pub count: u32,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Bars {
    fn micros(self) -> (i64, i64, i64) {
        let width = micros(self.width).max(1);
        let all = width.saturating_mul(i64::from(self.count));
        (
            self.from.as_micros(),
            width,
            self.from.as_micros().saturating_add(all),
        )
    }

    fn counts(self, found: impl IntoIterator<Item = (i64, i64)>) -> Vec<u64> {
        let mut counts = vec![0; self.count as usize];
        for (bar, found) in found {
            if let Some(count) = usize::try_from(bar)
                .ok()
                .and_then(|bar| counts.get_mut(bar))
            {
                *count = found.unsigned_abs();
            }
        }
        counts
    }
}

/// A slot that a node owns, with its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owned {
    /// The slot.
    pub slot: u32,
    /// The epoch.
    pub epoch: i64,
}

/// The live nodes and the owned slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// How many nodes hold a lease.
    pub live: u32,
    /// How many slots the nodes share.
    pub slots: u32,
    /// The slots of the asking node.
    pub owned: Vec<Owned>,
    /// How many slots nobody owns.
    pub free: u32,
    /// Time until another node's lease ends unless renewed; `None` without another node.
    pub next_end: Option<Duration>,
}

/// The row of a timer to be written.
#[derive(Clone, Debug, Default)]
pub struct NewRow {
    /// Where the row will lie.
    pub place: Place,
    /// The key, if any.
    pub key: Option<String>,
    /// The tag, if any.
    pub tag: Option<String>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Whether the key's present timer stays instead.
    pub keep: bool,
    /// The end of the debounce: later schedules do not put the timer off beyond it. An earlier end
    /// in the replaced timer counts instead.
    pub until: Option<StoreTime>,
    /// The intended due time, if different.
    pub planned: Option<StoreTime>,
}

/// What became of a row to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The answer.
    pub answer: Scheduled,
    /// When the timer is due, unless the key's former timer was kept.
    pub due: StoreTime,
}

/// The key's former timer, if the store's statements do not decide.
pub(crate) struct Former {
    until: Option<StoreTime>,
    claimed: bool,
    cancelled: bool,
}

impl NewRow {
    /// Decides about the key's former timer, and when this timer is due: now if its debounce ends.
    fn settle(&mut self, former: Option<Former>, now: StoreTime) -> Written {
        let answer = match &former {
            None => Scheduled::New,
            // A cancelled one ends with its run.
            Some(former) if self.keep && !former.cancelled => Scheduled::Kept,
            Some(_) => Scheduled::Replaced,
        };
        let first = former
            .filter(|former| !former.claimed)
            .and_then(|former| former.until);
        if let (Some(until), Some(first)) = (self.until, first) {
            self.until = Some(until.min(first));
            self.place.due = self.place.due.min(first.max(now));
        }
        Written {
            answer,
            due: self.place.due,
        }
    }
}

/// A key, and the slot in which it lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyName {
    /// The slot.
    pub slot: u32,
    /// The key.
    pub key: String,
}

/// A request for a timer, by the owner of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Where the timer lies.
    pub place: Place,
    /// The epoch in which the slot is owned.
    pub epoch: i64,
}

/// A timer that was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedRow {
    /// The request.
    pub claim: Claim,
    /// The key, if any.
    pub key: Option<String>,
    /// The tag, if any.
    pub tag: Option<String>,
    /// How often the timer was claimed with an answer, this time included.
    pub attempts: u32,
    /// How many attempts ended in a crash that another timer may have caused: at most [`ALONE`].
    pub crashes: u32,
    /// The payload.
    pub payload: Vec<u8>,
    /// The due time before the timer was put off.
    pub planned: StoreTime,
}

/// After this many crashes beside other timers, a timer runs alone. Later crashes are its own.
pub const ALONE: u32 = 3;

/// A timer whose last claim was never acknowledged, or that is due again since. Ordered by how
/// suspect the timer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suspect {
    /// Crashes beside other timers: at most [`ALONE`].
    pub crashes: u32,
    /// How often the timer was claimed with an answer.
    pub attempts: u32,
    /// Where the timer lies.
    pub place: Place,
}

/// A batch or an answer takes no further timer after this many bytes of payloads.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// What became of a batch of claims. A timer in none of the lists is not due at `now`, was moved,
/// cancelled or acknowledged, or its slot has another owner.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// The claimed timers, in no order.
    pub rows: Vec<ClaimedRow>,
    /// Passed over: in more crashes than asked for.
    pub suspects: Vec<Suspect>,
    /// Passed over: locked by a transaction.
    pub locked: Vec<Place>,
    /// The new places of timers that a pause put off.
    pub held: Vec<Place>,
    /// Passed over: the answer is full.
    pub more: Vec<Place>,
    /// The store's clock for this decision.
    pub now: StoreTime,
}

/// Selects timers or dead timers: all, unless a field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Timers with this tag.
    pub tag: Option<String>,
    /// The timer with this number.
    pub id: Option<i64>,
}

/// A change to many unclaimed timers, or dead timers, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    /// Timers are deleted.
    Cancel,
    /// Timers that are due at another time are moved to this time, in the order of slots and
    /// numbers, from these on.
    Touch(StoreTime, (u32, i64)),
    /// Timers that a pause has put off beyond this moment are due then, or at the end of a later
    /// pause.
    Release(StoreTime),
    /// Dead timers that died before this moment, or the named timer, are due at once, at this
    /// moment or later, with no attempts. Timers whose keys have timers again are left out.
    Requeue(StoreTime),
    /// Dead timers that died before this moment are deleted.
    Delete(StoreTime),
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Bulk {
    fn bounds(self) -> (StoreTime, (u32, i64)) {
        match self {
            Bulk::Cancel => (StoreTime::MIN, (0, 0)),
            Bulk::Touch(to, from) => (to, from),
            Bulk::Release(at) | Bulk::Requeue(at) | Bulk::Delete(at) => (at, (0, 0)),
        }
    }
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many timers were changed.
    pub count: u64,
    /// The slot and number from which more may follow: the limit was reached, or timers are locked.
    pub more: Option<(u32, i64)>,
}

/// How a claim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The row is deleted.
    Done,
    /// The row is due then, and can be claimed again.
    Retry(StoreTime),
    /// The same, with no attempts.
    Again {
        /// When it is due.
        due: StoreTime,
        /// The intended due time, if different.
        planned: Option<StoreTime>,
        /// The payload.
        payload: Vec<u8>,
    },
    /// The row moves to the dead timers, with this reason.
    Dead(String),
}

impl Ending {
    pub(crate) fn bytes(&self) -> usize {
        if let Ending::Again { payload, .. } = self {
            payload.len()
        } else {
            0
        }
    }
}

/// The acknowledgement of a claim. Changes nothing if the row was claimed anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Which claim.
    pub claim: Claim,
    /// How it ended.
    pub ending: Ending,
}

/// Places that other nodes wrote, and the store's clock.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Places due before the published horizon.
    pub places: Vec<Place>,
    /// The store's clock.
    pub now: StoreTime,
}

/// The next timer, for a node that rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// When the first timer of the namespace is due, claimed timers included; `MAX` without one.
    pub due: StoreTime,
    /// Whether an open transaction may still add an earlier timer.
    pub open: bool,
    /// The store's clock.
    pub now: StoreTime,
}

/// The future of a store's answer.
pub trait Answer<A>: Future<Output = Result<A, Error>> + Send {}

impl<A, F: Future<Output = Result<A, Error>> + Send> Answer<A> for F {}

mod sealed {
    /// Implemented by the stores of this crate.
    pub trait Sealed {}
}
use sealed::Sealed;

/// A store of durable timers.
///
/// Every operation is one atomic step for each timer in its batch. After [`Error::Unavailable`] or
/// [`Error::Refused`] nothing was done; after [`Error::Uncertain`] the operation may be done. The
/// store's clock decides when leases end and which timers are due. A key stands once in a batch.
/// The trait is sealed.
pub trait Store: Sealed + Send + Sync + 'static {
    /// Returns the number of slots, always the same.
    fn slots(&self) -> u32;

    /// Returns the slot for a hash: the same at all times and on each node.
    fn slot(&self, hash: u64) -> u32;

    /// Returns the schema of its tables, unless it is the default.
    #[cfg(feature = "postgres")]
    fn schema(&self) -> Option<Arc<str>> {
        None
    }

    /// Makes all connections of a node, before it starts.
    fn connect(&self) -> impl Answer<()> {
        async { Ok(()) }
    }

    /// Adds a node, with a lease from now on, if it has the connections to fire timers.
    fn join(&self, node: NodeId, lease: Duration) -> impl Answer<()>;

    /// Renews a node's lease, unless it has ended; returns whether. Fails as [`join`](Self::join)
    /// does.
    fn renew(&self, node: NodeId, lease: Duration) -> impl Answer<bool>;

    /// Removes nodes whose lease has ended, and returns the live nodes and the owned slots.
    fn survey(&self, node: NodeId) -> impl Answer<Survey>;

    /// Gives a node free slots, each in its next epoch; none without a lease.
    fn take(&self, node: NodeId, at_most: u32) -> impl Answer<Vec<Owned>>;

    /// Excludes a node from the nodes that share the slots. The node keeps its slots.
    fn retire(&self, node: NodeId) -> impl Answer<()>;

    /// Frees slots that the node owns in these epochs. Hints at one slot to all other nodes that
    /// share the slots.
    fn release(&self, node: NodeId, slots: Vec<Owned>) -> impl Answer<()>;

    /// Ends a node's lease, and frees its slots.
    fn leave(&self, node: NodeId) -> impl Answer<()>;

    /// Notifies a node without a lease of all timers that are written from now on and due before
    /// `until`; returns whether notices arrive. Ends with [`leave`](Self::leave).
    fn rest(&self, node: NodeId, until: StoreTime) -> impl Answer<bool>;

    /// Waits for a notice to a resting node. A notice without a timer is harmless.
    fn told(&self, node: NodeId) -> impl Answer<()>;

    /// Finds the first timer of the namespace.
    fn first(&self) -> impl Answer<First>;

    /// Publishes until when a node has loaded its timers: writers hint at earlier timers.
    fn publish(&self, node: NodeId, horizon: StoreTime) -> impl Answer<()>;

    /// Takes the recent hints for a node. A sweep finds the timers of lost hints.
    fn hints(&self, node: NodeId) -> impl Answer<Hints>;

    /// Returns a page of places. Reads no row that is due before the page.
    fn load(&self, page: Page) -> impl Answer<Vec<Place>>;

    /// Writes timers, in place of timers with the same keys. Hints at them to the owners of their
    /// slots, except `node`. Waits for no transaction: `None` stands for a locked key, for which
    /// nothing was done.
    fn schedule(&self, node: NodeId, rows: Vec<NewRow>) -> impl Answer<Vec<Option<Written>>>;

    /// Deletes unclaimed timers. A claimed timer ends with its claim: a retry or a new claim
    /// deletes it. `None`: as for a schedule.
    fn cancel(&self, keys: Vec<KeyName>) -> impl Answer<Vec<Option<Cancelled>>>;

    /// Moves unclaimed timers. Hints at all of them. `None`: as for a schedule.
    fn touch(&self, keys: Vec<(KeyName, StoreTime)>) -> impl Answer<Vec<Option<Touched>>>;

    /// Pauses all timers, or the timers of a tag, or ends the pause. A claim of a timer that is due
    /// before `until` puts it off until then. A claim that began earlier may miss the pause.
    fn pause(&self, tag: Option<String>, until: Option<StoreTime>) -> impl Answer<()>;

    /// Lists the pauses that are not over, in no order.
    fn pauses(&self) -> impl Answer<Vec<Paused>>;

    /// Changes at most `limit` timers that nobody has locked. Hints at moved timers.
    fn bulk(&self, scope: Scope, bulk: Bulk, limit: u32) -> impl Answer<Step>;

    /// Claims due timers in slots that the node owns in these epochs, unless a later epoch has
    /// claimed them. Counts an attempt, but not if this epoch has claimed the timer already: then
    /// the answer was lost. Waits for no lock.
    ///
    /// A timer that an earlier epoch claimed was in a crash. The next claim or pause counts it, up
    /// to [`ALONE`]. Claims no timer that was in more than `crashes` crashes.
    fn claim(&self, node: NodeId, claims: Vec<Claim>, crashes: u32) -> impl Answer<Claims>;

    /// Ends claims, each only if its epoch still has the row. Repeating is harmless. Waits for no
    /// lock: returns the claims of locked rows, to be repeated.
    fn acknowledge(&self, acks: Vec<Ack>) -> impl Answer<Vec<Claim>>;

    /// Looks a key up.
    fn get(&self, key: KeyName) -> impl Answer<Option<Pending>>;

    /// Lists timers in the order of their places.
    fn list(&self, search: Search) -> impl Answer<Vec<Listed>>;

    /// Counts the timers due in each interval. Reads all of them.
    fn histogram(&self, bars: Bars) -> impl Answer<Vec<u64>>;

    /// Lists dead timers in the order of their times of death.
    fn dead(&self, search: Search) -> impl Answer<Vec<DeadTimer>>;

    /// Returns a moment after the deaths of all dead timers. Later deaths are not before it.
    fn after_the_dead(&self) -> impl Answer<StoreTime> {
        // Of what a node knows of the store's clock none is exact.
        async { Ok(self.first().await?.now.plus(Duration::from_micros(1))) }
    }

    /// Makes a dead timer due at once with no attempts; returns whether there was one. A timer
    /// stays dead if its key has a timer again.
    fn requeue(&self, id: i64) -> impl Answer<bool> {
        let scope = Scope {
            id: Some(id),
            ..Scope::default()
        };
        async {
            Ok(self
                .bulk(scope, Bulk::Requeue(StoreTime::MIN), 1)
                .await?
                .count
                > 0)
        }
    }
}

/// A moment of a store's clock, in microseconds since 1970.
///
/// Only the store's clock decides what is due.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

/// The last moment, in the year 5138. Sums and differences of moments fit `i64`.
const LAST: i64 = 100_000_000_000_000_000;
/// The bits of a moment to which a pause puts timers off.
const MARK: i64 = (1 << 17) - 1;

impl StoreTime {
    /// The earliest moment, 1970.
    pub const MIN: StoreTime = StoreTime(0);
    /// The latest moment, in the year 5138. Later schedules are due then.
    pub const MAX: StoreTime = StoreTime(LAST);

    /// Returns the moment this many microseconds after 1970, clamped to `MIN` and `MAX`.
    pub fn from_micros(micros: i64) -> Self {
        StoreTime(micros.clamp(0, LAST))
    }

    /// Returns the microseconds since 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the moment `delay` later, at most `MAX`.
    pub fn plus(self, delay: Duration) -> Self {
        StoreTime::from_micros(self.0.saturating_add(micros(delay)))
    }

    /// Returns the moment `delay` earlier, at least `MIN`.
    pub fn minus(self, delay: Duration) -> Self {
        StoreTime::from_micros(self.0.saturating_sub(micros(delay)))
    }

    /// Returns the first moment from here on to which a pause may put timers off: they lie 131 ms
    /// apart, and no other timer is due then.
    pub(crate) fn marked(self) -> Self {
        // The last moment is none, but the one before.
        StoreTime(self.0.min(LAST - 1) | MARK)
    }

    /// Returns the first moment from here on that no pause uses.
    pub(crate) fn unmarked(self) -> Self {
        StoreTime(self.0 + i64::from(self.is_marked()))
    }

    pub(crate) fn is_marked(self) -> bool {
        self.0 & MARK == MARK
    }

    /// Returns the time since `earlier`, or zero.
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for StoreTime {
    /// Converts the time, rounded up to microseconds; a time before 1970 becomes `MIN`.
    fn from(time: SystemTime) -> Self {
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let micros = since.as_nanos().div_ceil(1_000);
        StoreTime::from_micros(i64::try_from(micros).unwrap_or(LAST))
    }
}

impl From<StoreTime> for SystemTime {
    fn from(time: StoreTime) -> Self {
        SystemTime::UNIX_EPOCH + time.since(StoreTime::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_in_range_and_fractions_are_rounded_up() {
        assert_eq!(StoreTime::MAX.plus(Duration::MAX), StoreTime::MAX);
        assert_eq!(StoreTime::MIN.minus(Duration::MAX), StoreTime::MIN);
        assert_eq!(StoreTime::MIN.since(StoreTime::MAX), Duration::ZERO);
        let early = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(StoreTime::from(early), StoreTime::MIN);
        let fraction = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_001);
        assert_eq!(StoreTime::from(fraction), StoreTime::from_micros(2));
        let last = StoreTime::MAX.marked();
        assert!(last.is_marked() && last.marked() == last && last.unmarked() == StoreTime::MAX);
    }
}
