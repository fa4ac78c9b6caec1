//! Where timers lie: what a node needs of a store, and no more.

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

/// Names a node for as long as it holds one lease; another lease is another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub i64);

/// Where the row of a timer lies. Ordered by the time at which it is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// When it is due.
    pub due: StoreTime,
    /// Its slot: what one node owns at a time.
    pub slot: u32,
    /// Its number, drawn at random.
    pub id: i64,
}

impl Place {
    /// Returns a place before all that are due then or later.
    pub fn before(due: StoreTime) -> Self {
        Place { due, slot: 0, id: i64::MIN }
    }
}

/// Some of the places in a few slots, in order: the first `limit` after `after` and due before
/// `before`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The slots.
    pub slots: Vec<u32>,
    /// The place before the first.
    pub after: Place,
    /// When what is due no longer counts.
    pub before: StoreTime,
    /// How many, at most.
    pub limit: u32,
}

/// Intervals that follow one another, in which timers are counted.
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
    /// Returns when they begin, how wide each is, and when they end: for a statement.
    fn micros(self) -> (i64, i64, i64) {
        let width = micros(self.width).max(1);
        let all = width.saturating_mul(i64::from(self.count));
        (self.from.as_micros(), width, self.from.as_micros().saturating_add(all))
    }

    /// Returns the count of each, given those that are not zero by their numbers.
    fn counts(self, found: impl IntoIterator<Item = (i64, i64)>) -> Vec<u64> {
        let mut counts = vec![0; self.count as usize];
        for (bar, found) in found {
            if let Some(count) = usize::try_from(bar).ok().and_then(|bar| counts.get_mut(bar)) {
                *count = found.unsigned_abs();
            }
        }
        counts
    }
}

/// A slot that a node owns, and the epoch that it was given with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owned {
    /// The slot.
    pub slot: u32,
    /// The epoch.
    pub epoch: i64,
}

/// Who is there, and who owns what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// How many nodes hold a lease.
    pub live: u32,
    /// How many slots they share.
    pub slots: u32,
    /// What the asking node owns.
    pub owned: Vec<Owned>,
    /// How many slots nobody owns.
    pub free: u32,
    /// How long it is until another node's lease ends, unless that is renewed; `None` without one.
    pub next_end: Option<Duration>,
}

/// The row of a timer to be written.
#[derive(Clone, Debug, Default)]
pub struct NewRow {
    /// Where it will lie.
    pub place: Place,
    /// The key, if it has one.
    pub key: Option<String>,
    /// The tag, if it has one.
    pub tag: Option<String>,
    /// What it carries.
    pub payload: Vec<u8>,
    /// Whether the key's timer, if there is one, stays instead.
    pub keep: bool,
    /// Until when the schedules that follow may put it off, if it is debounced. The timer that it
    /// replaces may say less; then that counts.
    pub until: Option<StoreTime>,
    /// When it was meant to be due, if that is another time.
    pub planned: Option<StoreTime>,
}

/// What became of a row that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The answer.
    pub answer: Scheduled,
    /// When it is due, unless the key's former timer was kept.
    pub due: StoreTime,
}

/// What a row finds at its key, in stores whose statements do not decide it.
pub(crate) struct Former {
    until: Option<StoreTime>,
    claimed: bool,
    cancelled: bool,
}

impl NewRow {
    /// Decides what becomes of the key's former timer, and when this one is due: now, if its
    /// debounce has to end and has been put off since.
    fn settle(&mut self, former: Option<Former>, now: StoreTime) -> Written {
        let answer = match &former {
            None => Scheduled::New,
            // A cancelled one ends with its run.
            Some(former) if self.keep && !former.cancelled => Scheduled::Kept,
            Some(_) => Scheduled::Replaced,
        };
        let first = former.filter(|former| !former.claimed).and_then(|former| former.until);
        if let (Some(until), Some(first)) = (self.until, first) {
            self.until = Some(until.min(first));
            self.place.due = self.place.due.min(first.max(now));
        }
        Written { answer, due: self.place.due }
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

/// A wish for a timer, by the owner of its slot.
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
    /// What was asked for.
    pub claim: Claim,
    /// The key, if it has one.
    pub key: Option<String>,
    /// The tag, if it has one.
    pub tag: Option<String>,
    /// How often it was claimed with an answer, this time included.
    pub attempts: u32,
    /// How many of those ended in a crash that may be another timer's: at most [`ALONE`].
    pub crashes: u32,
    /// What it carries.
    pub payload: Vec<u8>,
    /// When it was due before it was put off.
    pub planned: StoreTime,
}

/// In how many crashes a timer was beside others; after as many it is tried alone, and those that
/// follow are its own.
pub const ALONE: u32 = 3;

/// A timer whose last claim was never acknowledged: its owner has crashed, or lost its lease. Or
/// one that has ended since, and is due again. Ordered by how suspect it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suspect {
    /// In how many crashes it was, those of its own not counted: at most [`ALONE`].
    pub crashes: u32,
    /// How often it was claimed with an answer.
    pub attempts: u32,
    /// Where it lies.
    pub place: Place,
}

/// How many bytes of payloads go into one batch, or an answer, and then no further timer: over a
/// slow link a longer one would take longer than anybody waits for it.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// What became of a batch of claims. What is in none of these is not due at `now`, or has been
/// moved, cancelled or acknowledged, or its slot has another owner.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// What was claimed, in no order.
    pub rows: Vec<ClaimedRow>,
    /// What was passed over, because it was in more crashes than was asked for.
    pub suspects: Vec<Suspect>,
    /// What was passed over, because somebody's transaction has its row locked.
    pub locked: Vec<Place>,
    /// Where those lie now that were put off, because of a pause.
    pub held: Vec<Place>,
    /// What was passed over, because the payloads before it are enough for one answer.
    pub more: Vec<Place>,
    /// The store's clock by which it was decided what is due.
    pub now: StoreTime,
}

/// Which timers, or dead timers, are meant: all of the namespace but for what is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Those with this tag.
    pub tag: Option<String>,
    /// That of this number.
    pub id: Option<i64>,
}

/// What is done to many, a step at a time: to timers that nobody has claimed, or to dead ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    /// Timers are deleted.
    Cancel,
    /// Timers that are due at another time are moved to this one. They are taken in the order of
    /// their slots and numbers, from these on: one that runs and is due again is not taken twice.
    Touch(StoreTime, (u32, i64)),
    /// Timers that a pause has put off beyond this moment are due then, or at the end of a later
    /// one that holds them.
    Release(StoreTime),
    /// Dead timers that died before this moment, or the one that is named, are due at once and not
    /// before it, with no attempts; but for those whose keys have timers again. What dies again has
    /// so died later, whatever becomes of the clock.
    Requeue(StoreTime),
    /// Dead timers that died before this moment are deleted.
    Delete(StoreTime),
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Bulk {
    /// Returns the moment that is said, and from which slot and id on: for a statement.
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
    /// How many were changed.
    pub count: u64,
    /// The slot and the number from which on there may be more: there were as many as the limit
    /// allows, or some are locked.
    pub more: Option<(u32, i64)>,
}

/// How a claim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The row goes.
    Done,
    /// The row is due then and may be claimed again.
    Retry(StoreTime),
    /// The same, with no attempts.
    Again {
        /// When it is due.
        due: StoreTime,
        /// When it was meant to be, if that is another time.
        planned: Option<StoreTime>,
        /// What it carries.
        payload: Vec<u8>,
    },
    /// The row goes to the dead ones, with this reason.
    Dead(String),
}

impl Ending {
    /// Returns how long its payload is.
    pub(crate) fn bytes(&self) -> usize {
        if let Ending::Again { payload, .. } = self { payload.len() } else { 0 }
    }
}

/// The acknowledgement of a claim. If the row was claimed anew since it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Which claim.
    pub claim: Claim,
    /// How it ended.
    pub ending: Ending,
}

/// Places that other nodes wrote, and what the store's clock showed meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Places whose timers are due before the horizon that was published.
    pub places: Vec<Place>,
    /// The store's clock.
    pub now: StoreTime,
}

/// What is to come, as one who rests sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// When the first timer of the namespace is due, claimed ones included; `MAX` if there is none.
    pub due: StoreTime,
    /// Whether there may be an earlier one, by somebody who began to write it before that was told.
    pub open: bool,
    /// The store's clock.
    pub now: StoreTime,
}

/// What a store answers, in its time.
pub trait Answer<A>: Future<Output = Result<A, Error>> + Send {}

impl<A, F: Future<Output = Result<A, Error>> + Send> Answer<A> for F {}

mod sealed {
    /// Implemented by the stores of this crate.
    pub trait Sealed {}
}
use sealed::Sealed;

/// A store of durable timers.
///
/// Every operation is one atomic step for each timer in its batch. One that fails with
/// [`Error::Unavailable`] or [`Error::Refused`] has done nothing; after [`Error::Uncertain`] it may
/// have. The store's own clock decides when leases end and what is due. In one batch a key stands
/// once. The trait is sealed: it grows with what nodes need.
pub trait Store: Sealed + Send + Sync + 'static {
    /// Returns how many slots there are. Does not change.
    fn slots(&self) -> u32;

    /// Returns the slot for a hash. It is the same at all times and on each node.
    fn slot(&self, hash: u64) -> u32;

    /// Returns the schema of its tables, where that is another one than usual.
    #[cfg(feature = "postgres")]
    fn schema(&self) -> Option<Arc<str>> {
        None
    }

    /// Has all connections that a node needs, before it starts.
    fn connect(&self) -> impl Answer<()> {
        async { Ok(()) }
    }

    /// Lets a node in, with a lease from now on, if it has the connections to fire timers.
    fn join(&self, node: NodeId, lease: Duration) -> impl Answer<()>;

    /// Renews a node's lease from now on, if it has not ended; returns whether. Fails as
    /// [`join`](Self::join) does.
    fn renew(&self, node: NodeId, lease: Duration) -> impl Answer<bool>;

    /// Strikes off nodes whose lease has ended, and tells who is left and who owns what.
    fn survey(&self, node: NodeId) -> impl Answer<Survey>;

    /// Gives a node slots that nobody owns, each in its next epoch; none if it has no lease.
    fn take(&self, node: NodeId, at_most: u32) -> impl Answer<Vec<Owned>>;

    /// Counts a node that is about to leave no more among those that share the slots. What it still
    /// owns it keeps.
    fn retire(&self, node: NodeId) -> impl Answer<()>;

    /// Makes slots nobody's, as far as the node owns them in these epochs. Hints at one of them to
    /// all others that share the slots.
    fn release(&self, node: NodeId, slots: Vec<Owned>) -> impl Answer<()>;

    /// Ends a node's lease, and makes its slots nobody's.
    fn leave(&self, node: NodeId) -> impl Answer<()>;

    /// Has a node without a lease told of all timers that are written from now on and due before
    /// `until`; returns whether it will be. Ends with [`leave`](Self::leave).
    fn rest(&self, node: NodeId, until: StoreTime) -> impl Answer<bool>;

    /// Waits until a node that rests is told of a timer. To be told for nothing is harmless.
    fn told(&self, node: NodeId) -> impl Answer<()>;

    /// Looks for the first timer of the namespace.
    fn first(&self) -> impl Answer<First>;

    /// Publishes until when a node has loaded its timers: who writes an earlier one hints at it.
    fn publish(&self, node: NodeId, horizon: StoreTime) -> impl Answer<()>;

    /// Takes the recent hints for a node. A hint may be lost: a sweep finds its timer.
    fn hints(&self, node: NodeId) -> impl Answer<Hints>;

    /// Returns a page of places. Reads no row that is due before the page: those may be dead, and
    /// many.
    fn load(&self, page: Page) -> impl Answer<Vec<Place>>;

    /// Writes timers, in place of those with the same keys. Hints at them to the owners of their
    /// slots, but not to `node`, which knows them. As each call that writes it waits for nobody's
    /// transaction: `None` stands for a key that one has locked. Nothing was done for that.
    fn schedule(&self, node: NodeId, rows: Vec<NewRow>) -> impl Answer<Vec<Option<Written>>>;

    /// Deletes timers that nobody has claimed. Those that somebody has end with that claim: to
    /// retry one, or to claim it anew, deletes it. `None`: as for a schedule.
    fn cancel(&self, keys: Vec<KeyName>) -> impl Answer<Vec<Option<Cancelled>>>;

    /// Moves timers that nobody has claimed. Hints at all of them. `None`: as for a schedule.
    fn touch(&self, keys: Vec<(KeyName, StoreTime)>) -> impl Answer<Vec<Option<Touched>>>;

    /// Pauses all timers, or those of a tag, or ends that: to claim one that is due before `until`
    /// puts it off until then. A claim that has begun before may not see it.
    fn pause(&self, tag: Option<String>, until: Option<StoreTime>) -> impl Answer<()>;

    /// Lists the pauses that are not over, in no order.
    fn pauses(&self) -> impl Answer<Vec<Paused>>;

    /// Does the same to at most `limit` that nobody has locked. Hints at timers that it moves.
    fn bulk(&self, scope: Scope, bulk: Bulk, limit: u32) -> impl Answer<Step>;

    /// Claims timers that are due and lie in slots that the node owns in these epochs, unless they
    /// are claimed in a later one. Counts the attempt, unless the timer is claimed in this epoch
    /// already: then the answer was lost, and no handler has begun. Waits for nobody's lock.
    ///
    /// One that is claimed in an earlier epoch was in a crash, which is counted with the claim that
    /// follows it, or the pause that puts it off, up to [`ALONE`]. Claims none that was in more
    /// than `crashes`.
    fn claim(&self, node: NodeId, claims: Vec<Claim>, crashes: u32) -> impl Answer<Claims>;

    /// Ends claims, each only if its row is still claimed in its epoch. To ask twice is harmless.
    /// Waits for nobody's lock: returns the claims whose rows are locked, to be asked for again.
    fn acknowledge(&self, acks: Vec<Ack>) -> impl Answer<Vec<Claim>>;

    /// Looks a key up.
    fn get(&self, key: KeyName) -> impl Answer<Option<Pending>>;

    /// Lists timers, by the order of their places.
    fn list(&self, search: Search) -> impl Answer<Vec<Listed>>;

    /// Counts the timers due in each interval. Takes time proportional to those.
    fn histogram(&self, bars: Bars) -> impl Answer<Vec<u64>>;

    /// Lists dead timers, by the order of the places that have their times of death.
    fn dead(&self, search: Search) -> impl Answer<Vec<DeadTimer>>;

    /// Returns a moment before which all died that are dead, and nobody else will.
    fn after_the_dead(&self) -> impl Answer<StoreTime> {
        // Of what a node knows of the store's clock none is exact.
        async { Ok(self.first().await?.now.plus(Duration::from_micros(1))) }
    }

    /// Makes a dead timer due at once with no attempts; returns whether there is one. One whose key
    /// has a timer again stays dead.
    fn requeue(&self, id: i64) -> impl Answer<bool> {
        let scope = Scope { id: Some(id), ..Scope::default() };
        async { Ok(self.bulk(scope, Bulk::Requeue(StoreTime::MIN), 1).await?.count > 0) }
    }
}

/// A moment of a store's clock, in microseconds since 1970.
///
/// The store's clock alone decides what is due, so nodes need not agree on the time.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

/// The last moment that counts, in the year 5138. Far from the ends of `i64`, so that whatever is
/// added to or subtracted from two moments has a name.
const LAST: i64 = 100_000_000_000_000_000;
/// The bits, in microseconds, of a moment to which a pause puts timers off.
const MARK: i64 = (1 << 17) - 1;

impl StoreTime {
    /// The earliest moment, 1970.
    pub const MIN: StoreTime = StoreTime(0);
    /// The latest moment, in the year 5138. What is scheduled later is scheduled then.
    pub const MAX: StoreTime = StoreTime(LAST);

    /// Returns the moment that lies so many microseconds after 1970, clamped to `MIN` and `MAX`.
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

    /// Returns the first moment from here on to which a pause may put timers off, at the end of
    /// time the last one: these are told from others, so that all of them do not go first, and that
    /// they are let go. They lie 131 ms apart.
    pub(crate) fn marked(self) -> Self {
        // The last moment is none, but the one before.
        StoreTime(self.0.min(LAST - 1) | MARK)
    }

    /// Returns the first moment from here on that is none of those of pauses.
    pub(crate) fn unmarked(self) -> Self {
        StoreTime(self.0 + i64::from(self.is_marked()))
    }

    /// Returns whether it is such a moment.
    pub(crate) fn is_marked(self) -> bool {
        self.0 & MARK == MARK
    }

    /// Returns how long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for StoreTime {
    /// Converts the time; one before 1970 becomes `MIN`. Rounds up, so a timer is never early by a
    /// fraction.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
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
