//! The expirations: which bucket of a timing wheel has to be flushed next, and when.
//!
//! Two binary heaps: waiting buckets by the tick at which they expire, and cascading buckets of
//! overflow wheels by their first tick. With a single heap a long cascade would come before what
//! falls due meanwhile.

use crate::wheel::level::Expiration;
use crate::wheel::tick::Tick;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// At this size a heap gives its memory back: its buckets are moved under a shard's lock.
const FEW: usize = 128;

/// Each armed bucket of a wheel, once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expirations {
    waiting: BinaryHeap<Reverse<Expiration>>,
    cascading: BinaryHeap<Reverse<Cascade>>,
}

/// Ordered by its first tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cascade {
    start: Tick,
    expiration: Expiration,
}

impl Expirations {
    pub(crate) fn push(&mut self, expiration: Expiration) {
        self.waiting.push(Reverse(expiration));
    }

    #[inline]
    pub(crate) fn waiting(&self) -> Option<Expiration> {
        self.waiting.peek().map(|Reverse(first)| *first)
    }

    #[inline]
    pub(crate) fn cascading(&self) -> Option<Expiration> {
        self.cascading.peek().map(|Reverse(first)| first.expiration)
    }

    /// Moves the bucket that expires first to the cascading ones.
    pub(crate) fn begin_cascade(&mut self) {
        if let Some(Reverse(expiration)) = pop(&mut self.waiting) {
            self.cascading.push(Reverse(Cascade {
                start: expiration.start,
                expiration,
            }));
        }
    }

    /// Removes the first bucket of those that cascade or wait.
    pub(crate) fn remove(&mut self, first: Expiration) {
        if self.cascading() == Some(first) {
            pop(&mut self.cascading);
        } else {
            debug_assert_eq!(self.waiting(), Some(first), "it does not come first");
            pop(&mut self.waiting);
        }
    }

    /// Returns the nth waiting bucket, in no order that lasts.
    pub(crate) fn nth_waiting(&self, nth: usize) -> Option<Expiration> {
        self.waiting
            .as_slice()
            .get(nth)
            .map(|Reverse(expiration)| *expiration)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Expiration> {
        let cascading = self
            .cascading
            .iter()
            .map(|Reverse(cascade)| cascade.expiration);
        self.waiting
            .iter()
            .map(|Reverse(expiration)| *expiration)
            .chain(cascading)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    /// When the first bucket expires; [`Tick::NEVER`] if none is armed.
    pub(crate) tick: Tick,
    /// The turn that took out this tick's bucket before, if nothing that it took is left to be
    /// flushed; else 0.
    pub(crate) turn: u64,
    /// The first tick of the cascading bucket; [`Tick::NEVER`] if there is none.
    pub(crate) cascade: Tick,
}

impl First {
    pub(crate) const NEVER: Self = First {
        tick: Tick::NEVER,
        turn: 0,
        cascade: Tick::NEVER,
    };
}

fn pop<T: Ord>(heap: &mut BinaryHeap<T>) -> Option<T> {
    let first = heap.pop();
    if heap.len() <= FEW && heap.capacity() > 16 * FEW {
        heap.shrink_to(2 * FEW);
    }
    first
}
