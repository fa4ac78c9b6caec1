//! The expirations: which bucket of a timing wheel has to be flushed next, and when.
//!
//! Two binary heaps. A bucket that waits is in one, by the tick at which it expires. A bucket of an
//! overflow wheel that has expired is in the other, by its first tick, until its entries are
//! inserted again. With a single heap a long cascade would come before what falls due meanwhile.

use crate::wheel::level::Expiration;
use crate::wheel::tick::{Nanos, Tick};
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// How few buckets a heap has when it gives its memory back: they are moved under one hold of a
/// shard's lock.
const FEW: usize = 128;

/// Each armed bucket of a wheel, once; see the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Expirations {
    waiting: BinaryHeap<Reverse<Expiration>>,
    cascading: BinaryHeap<Reverse<Cascade>>,
}

/// A bucket that is being cascaded. Ordered by its first tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cascade {
    start: Tick,
    expiration: Expiration,
}

impl Expirations {
    /// Adds a bucket that was not armed.
    pub(crate) fn push(&mut self, expiration: Expiration) {
        self.waiting.push(Reverse(expiration));
    }

    /// Returns the bucket that expires first, of those that have not.
    #[inline]
    pub(crate) fn waiting(&self) -> Option<Expiration> {
        self.waiting.peek().map(|Reverse(first)| *first)
    }

    /// Returns the bucket to be cascaded first.
    #[inline]
    pub(crate) fn cascading(&self) -> Option<Expiration> {
        self.cascading.peek().map(|Reverse(first)| first.expiration)
    }

    /// Moves the bucket that expires first to those that are being cascaded.
    pub(crate) fn begin_cascade(&mut self) {
        if let Some(Reverse(expiration)) = pop(&mut self.waiting) {
            self.cascading.push(Reverse(Cascade { start: expiration.start, expiration }));
        }
    }

    /// Removes a bucket that comes first, of those that cascade or of those that wait.
    pub(crate) fn remove(&mut self, first: Expiration) {
        if self.cascading() == Some(first) {
            pop(&mut self.cascading);
        } else {
            debug_assert_eq!(self.waiting(), Some(first), "it does not come first");
            pop(&mut self.waiting);
        }
    }

    /// Returns the nth bucket of those that wait, in no order that lasts.
    pub(crate) fn nth_waiting(&self, nth: usize) -> Option<Expiration> {
        self.waiting.as_slice().get(nth).map(|Reverse(expiration)| *expiration)
    }

    /// Returns every armed bucket, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Expiration> {
        let cascading = self.cascading.iter().map(|Reverse(cascade)| cascade.expiration);
        self.waiting.iter().map(|Reverse(expiration)| *expiration).chain(cascading)
    }
}

/// What a wheel has to be flushed for first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    /// When the first bucket expires; [`Tick::NEVER`] if none is armed.
    pub(crate) tick: Tick,
    /// The turn in which that tick was flushed before, if what was there then is gone; or else 0.
    pub(crate) turn: u64,
    /// The first tick of the bucket that is being cascaded; [`Tick::NEVER`] if none is.
    pub(crate) cascade: Tick,
}

impl First {
    pub(crate) const NEVER: Self = First { tick: Tick::NEVER, turn: 0, cascade: Tick::NEVER };
}

/// The turn for which a wheel is flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    /// The tick in which the turn began: nothing later is flushed.
    pub(crate) limit: Tick,
    pub(crate) turn: u64,
    /// The present, read after the shard was locked: so nothing that was due when it was filed is
    /// not due now.
    pub(crate) present: Nanos,
    /// How many references of a due bucket are looked at.
    pub(crate) batch: usize,
}

fn pop<T: Ord>(heap: &mut BinaryHeap<T>) -> Option<T> {
    let first = heap.pop();
    if heap.len() <= FEW && heap.capacity() > 16 * FEW {
        heap.shrink_to(2 * FEW);
    }
    first
}
