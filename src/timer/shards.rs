//! The shards of a timer: which of them a thread adds to, and what they contain together.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread_number;
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::Wakes;
use crate::timer::entry::{TimerEntry, When};
use crate::timer::error::AddError;
use crate::timer::owner::place_of;
use crate::timer::pool;
use crate::timer::shard::{Added, Refusal, Shard};
use crate::timer::timeout::Timeout;
use crate::wheel::wheels::Wheels;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// The shards of a timer; see the [module](self). Whoever adds to them may keep them alive: they
/// own no code of a user's, and are empty when their timer has ended.
pub(crate) struct Shards<T: Send + 'static> {
    /// Their number is a power of two.
    shards: Box<[&'static Shard<T>]>,
    /// Their number is a power of two, too.
    pairs: Box<[CachePadded<Pair<T>>]>,
    pub(crate) context: Arc<TimerContext>,
}

/// The handle of a timer that was added, and whom to wake.
pub(crate) type Unwoken<T> = Result<(Timeout<T>, Wakes), AddError<T>>;

/// Two shards, of which a thread adds to one; see [`Shards::home`].
struct Pair<T: 'static> {
    shards: [&'static Shard<T>; 2],
    /// Whether it is the second one.
    second: AtomicBool,
}

impl<T: Send + 'static> Shards<T> {
    /// Creates `count` shards, a power of two, with wheels of `wheel_size` slots, numbered from
    /// `first` on.
    pub(crate) fn new(
        context: Arc<TimerContext>,
        (count, wheel_size): (usize, usize),
        first: u32,
    ) -> Self {
        let shard = |number| {
            let shard = pool::take(|_| true, Shard::new);
            shard.serve(Arc::clone(&context), Wheels::new(number, wheel_size, 0));
            shard
        };
        let shards: Box<[_]> = (first..).take(count).map(shard).collect();
        // A single shard is a pair with itself.
        let pair = |pair: &[&'static Shard<T>]| {
            let shards = [pair[0], pair[pair.len() - 1]];
            CachePadded::new(Pair { shards, second: AtomicBool::new(false) })
        };
        let pairs = shards.chunks(2).map(pair).collect();
        Shards { shards, pairs, context }
    }

    /// Adds an entry to the calling thread's shard.
    #[inline]
    pub(crate) fn add(&self, entry: TimerEntry<T>) -> Result<Timeout<T>, AddError<T>> {
        let (timeout, wakes) = self.add_unwoken(entry)?;
        self.context.wake(wakes);
        Ok(timeout)
    }

    /// Adds an entry for a caller that holds a lock. Also returns whom to wake when that lock is
    /// released.
    #[inline]
    pub(crate) fn add_unwoken(&self, entry: TimerEntry<T>) -> Unwoken<T> {
        self.add_by(entry, Shard::add)
    }

    /// Adds an entry in the same way for a caller that cannot be refused: above `max_pending` if
    /// necessary. Fails only after `shutdown`.
    pub(crate) fn add_beyond_limit(&self, entry: TimerEntry<T>) -> Unwoken<T> {
        self.add_by(entry, Shard::add_beyond_limit)
    }

    #[inline]
    fn add_by(
        &self,
        entry: TimerEntry<T>,
        add: impl FnOnce(&'static Shard<T>, &TimerContext, When, T) -> Added<T>,
    ) -> Unwoken<T> {
        let (when, task) = (entry.when(), entry.into_task());
        let shard = self.home();
        match add(shard, &self.context, when, task) {
            Ok((key, crowded, wakes)) => {
                if crowded {
                    self.leave_crowd();
                }
                Ok((Timeout::new(shard, key), wakes))
            }
            Err((refusal, task)) => Err(Self::refused(refusal, when, task)),
        }
    }

    #[cold]
    fn refused(refusal: Refusal, when: When, task: T) -> AddError<T> {
        let entry = TimerEntry::new(when, task);
        match refusal {
            Refusal::Full => AddError::Full(entry),
            Refusal::Closed => AddError::Shutdown(entry),
        }
    }

    /// Returns the shard that the calling thread adds to.
    ///
    /// Each thread has a pair of shards to itself, as far as there are enough, and adds to one of
    /// them. When other threads come there often, because they cancel what this thread adds, it
    /// changes to the other shard of the pair, and leaves them the first one with the timers that
    /// they know. So neither thread contends for the other's lock or for the cache lines behind it.
    #[inline]
    pub(crate) fn home(&self) -> &'static Shard<T> {
        let pair = self.pair();
        // Relaxed: either shard is right.
        pair.shards[usize::from(pair.second.load(Ordering::Relaxed))]
    }

    /// Makes the calling thread's pair change to its other shard.
    fn leave_crowd(&self) {
        self.pair().second.fetch_xor(true, Ordering::Relaxed);
    }

    #[inline]
    fn pair(&self) -> &Pair<T> {
        &self.pairs[thread_number() as usize & (self.pairs.len() - 1)]
    }

    /// Returns the shard with this number.
    #[inline]
    pub(crate) fn of(&self, shard: u32) -> &'static Shard<T> {
        self.shards[place_of(shard)]
    }

    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Shard<T>> {
        self.shards.iter().copied()
    }

    /// Closes all shards, and hands the pending entries to `out`, with their deadlines.
    pub(crate) fn drain(&self, mut out: impl FnMut(u64, T)) {
        self.shards.iter().for_each(|shard| shard.drain(&self.context, &mut out));
    }
}

impl<T: Send + 'static> Drop for Shards<T> {
    /// Gives the shards back to the pool. Nothing is pending: the timer was drained when it was
    /// dropped.
    fn drop(&mut self) {
        self.shards.iter().filter(|shard| shard.retire()).for_each(|shard| pool::put(*shard));
    }
}
