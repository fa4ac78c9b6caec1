//! A shard of keyed timers under its lock, which the thread [notes](crate::timer::holding).

use crate::keyed::shard::Shard;
use crate::sync::MutexGuard;
use crate::timer::context::TimerContext;
use crate::timer::holding::Holding;
use crate::timer::shard_lock::ShardLock;
use std::ops::{Deref, DerefMut};

/// A shard under its lock; see the [module](self).
pub(crate) struct Locked<'a, K, T> {
    shard: MutexGuard<'a, Shard<K, T>>,
    _holding: Holding,
}

impl<'a, K, T> Locked<'a, K, T> {
    /// Locks a shard of the keyed timer at `keyed`, which tells it from others.
    #[inline]
    pub(crate) fn new(
        keyed: &impl Sized,
        timer: &TimerContext,
        shard: &'a ShardLock<Shard<K, T>>,
    ) -> Self {
        let holding = Holding::begin(keyed, timer);
        Locked { shard: shard.lock(), _holding: holding }
    }
}

impl<K, T> Deref for Locked<'_, K, T> {
    type Target = Shard<K, T>;

    #[inline]
    fn deref(&self) -> &Shard<K, T> {
        &self.shard
    }
}

impl<K, T> DerefMut for Locked<'_, K, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shard<K, T> {
        &mut self.shard
    }
}
