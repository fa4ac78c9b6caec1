//! The triggers: who goes through the operations of a key, to check them, or to cancel them.

use crate::purgatory::Purgatory;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operation_ref::OperationRef;
use crate::purgatory::place::Id;
use crate::purgatory::visit::Begin;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

impl<K, O, S> Purgatory<K, O, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
    S: BuildHasher,
{
    /// A trigger: checks the operations that are watched on `key`, in the order in which they came,
    /// and completes those whose condition holds. Returns how many this call completed.
    ///
    /// Their `on_complete` is called one by one, before the next is checked; but if this is called
    /// from an operation's `on_complete`, or one of the other ends, then after that has returned.
    /// An operation that another thread is checking is left to that thread, which checks it again
    /// once. What is triggered during that check as well is checked by the timer's executor, in its
    /// next turn: no call serves others without bound, and none of their triggers is lost. (After a
    /// `shutdown` of the timer there is nobody to leave it to: then the thread goes on.) Neither
    /// counts as completed by this call.
    ///
    /// An operation whose time is up is not checked any more.
    ///
    /// Call it after the change, and after releasing any lock that `try_complete` takes. On a key
    /// that nobody watches it costs a hash and a lock; otherwise time in proportion to the key's
    /// operations, of which it takes a few dozen at once out of the shard.
    pub fn check_and_complete<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.check(key, Begin::Front, usize::MAX)
    }

    /// A trigger for so many: checks the operations that are watched on `key` until this call has
    /// completed `limit` of them. Returns how many it completed.
    ///
    /// This is for what only so many can have: an item that one of many waiting workers takes. It
    /// costs one check if the first can take it, where
    /// [`check_and_complete`](Self::check_and_complete) checks all of them each time.
    ///
    /// # Order
    /// Goes through the operations in the order in which they came, beginning behind the one at
    /// which the last call on this key that reached its limit has stopped. At the end it goes on at
    /// the front; it checks each that was watched when it began once at most. So those whose
    /// condition is false are passed over by later calls; but not for ever: when one that began at
    /// the front has looked at so many operations, it is the turn of as many calls, itself
    /// included, and then the next one begins there again. A call that does not reach its limit has
    /// gone through all of them, and leaves their turn as it was; so does every other trigger.
    ///
    /// # What counts
    /// Only what this call completed. What it leaves to others, as `check_and_complete` does, does
    /// not count: an operation that another thread is checking, is to be checked again by that,
    /// and this call goes on to the next. Rather is one checked in vain than that nobody takes an
    /// item. Calls that meet may complete as many as their limits say, each for itself.
    ///
    /// If `limit` is 0, nothing is checked; if it is `usize::MAX`, all are.
    ///
    /// # No item is left while an operation waits for it
    /// That holds if whoever puts items in calls this after that, with their number as the `limit`;
    /// if every operation that is completed takes one at least, by its
    /// [`try_complete`](DelayedOperation::try_complete); and if each takes any of them. Operations
    /// that wait for different things need different keys, or `check_and_complete`. So does what
    /// completes them without an item, such as the end of the queue.
    ///
    /// Takes time in proportion to the operations that it checks. It takes no more of them out of
    /// the shard at once than are still to be completed, so with a small limit each that is checked
    /// in vain costs a lock more than there.
    ///
    /// ```
    /// use std::collections::VecDeque;
    /// use std::sync::{Arc, Mutex, mpsc};
    /// use std::time::Duration;
    /// use tickwheel::Timer;
    /// use tickwheel::purgatory::{DelayedOperation, Purgatory};
    ///
    /// type Jobs = Arc<Mutex<VecDeque<u32>>>;
    ///
    /// /// A worker that waits for a job.
    /// struct Worker {
    ///     jobs: Jobs,
    ///     job: Option<u32>,
    ///     response: mpsc::Sender<Option<u32>>,
    /// }
    ///
    /// impl DelayedOperation for Worker {
    ///     // Takes the job: whoever returns true here is completed, come what may.
    ///     fn try_complete(&mut self) -> bool {
    ///         self.job = self.jobs.lock().unwrap().pop_front();
    ///         self.job.is_some()
    ///     }
    ///
    ///     // `None` if the time is up.
    ///     fn on_complete(&mut self) {
    ///         let _ = self.response.send(self.job.take());
    ///     }
    /// }
    ///
    /// let timer = Timer::builder().start()?;
    /// let workers = Purgatory::new(&timer);
    /// let jobs = Jobs::default();
    /// let (response, answers) = mpsc::channel();
    /// for _ in 0..10_000 {
    ///     let worker = Worker { jobs: Arc::clone(&jobs), job: None, response: response.clone() };
    ///     let max_wait = Duration::from_secs(30);
    ///     assert!(!workers.try_complete_else_watch(worker, max_wait, &["mails"])?.is_completed());
    /// }
    ///
    /// jobs.lock().unwrap().push_back(7); // Released, then:
    /// assert_eq!(workers.check_and_complete_up_to("mails", 1), 1); // one check, not 10,000.
    /// assert_eq!(answers.try_recv()?, Some(7));
    ///
    /// jobs.lock().unwrap().extend([8, 9]);
    /// assert_eq!(workers.check_and_complete_up_to("mails", 2), 2);
    /// assert_eq!(workers.watched_for("mails"), 9_997);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_and_complete_up_to<Q>(&self, key: &Q, limit: usize) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if limit == 0 {
            return 0;
        }
        self.check(key, Begin::Cursor, limit)
    }

    /// [`check_and_complete`](Self::check_and_complete) for each of several keys.
    pub fn check_and_complete_all(&self, keys: &[K]) -> usize {
        keys.iter().map(|key| self.check_and_complete(key)).sum()
    }

    /// Returns how many operations are watched on `key`. Takes time in proportion to them, a few
    /// dozen at once under the lock.
    pub fn watched_for<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut watched = 0;
        self.visit(key, Begin::Front, usize::MAX, |batch| {
            watched += batch.len();
            0
        });
        watched
    }

    /// Cancels the operations that are watched on `key`: takes them out of *all* their keys and out
    /// of the timer, and returns them, in the order in which they came.
    ///
    /// One that another thread is checking at this moment can't be returned: that thread calls its
    /// [`on_cancellation`](DelayedOperation::on_cancellation), unless it finds that its condition
    /// holds, and completes it.
    pub fn cancel_for_key<Q>(&self, key: &Q) -> Vec<O>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut cancelled = Vec::new();
        let shards = self.shared.shards();
        self.visit(key, Begin::Front, usize::MAX, |batch| {
            let cancel = |&id| OperationRef { shards, id }.cancel_unless_adding();
            cancelled.extend(batch.iter().filter_map(cancel));
            0
        });
        cancelled
    }
}

impl<K, O, S> Purgatory<K, O, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
    S: BuildHasher,
{
    /// Checks the operations that are watched on `key` now, until `limit` of them are completed.
    /// Returns how many are.
    fn check<Q>(&self, key: &Q, begin: Begin, limit: usize) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shards = self.shared.shards();
        let mut completed = 0;
        self.visit(key, begin, limit, |batch| {
            let (before, mut taken) = (completed, None);
            for (place, &id) in batch.iter().enumerate() {
                let operation = OperationRef { shards, id };
                // It may have been taken along with the one before it.
                let Some(held) = taken.take().or_else(|| operation.trigger()) else { continue };
                let (is_completed, next) = operation.check(held, batch.get(place + 1).copied());
                completed += usize::from(is_completed);
                taken = next;
            }
            completed - before
        });
        completed
    }

    /// Calls `see` with the operations that are watched on a key now, some at once, without any
    /// lock, until what it returns adds up to `limit`.
    fn visit<Q>(&self, key: &Q, begin: Begin, limit: usize, mut see: impl FnMut(&[Id]) -> usize)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shards = self.shared.shards();
        let hash = self.hash(key);
        let number = shards.number_of(hash);
        let (mut seen, mut batch) = (0, Vec::new());
        // No more are taken along than are still wanted: so each of them is seen, and no other.
        let mut shard = shards.lock(number);
        let mut visit = shard.watchers.visit(hash, key, begin, limit, &mut batch);
        loop {
            shard.leave_out_ended(&mut batch);
            drop(shard);
            seen += see(&batch);
            batch.clear();
            let Some(unfinished) = visit else { return };
            shard = shards.lock(number);
            visit = shard.watchers.resume(unfinished, limit - seen, &mut batch);
        }
    }
}
