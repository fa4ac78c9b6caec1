//! The places of an operation and its entries.

use crate::store::key::Key;
use std::num::NonZeroU8;

/// Identifies one operation, and never another one: its record's key, in the shard of its first
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) shard: u16,
    pub(crate) key: Key,
}

impl Id {
    /// The name of no operation, for a slot without an entry.
    pub(crate) const NONE: Id = Id { shard: 0, key: Key { index: 0, generation: 0 } };
}

/// The place of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) shard: u16,
    /// Counted from 1: the impossible value 0 distinguishes the variants of [`Places`], which saves
    /// 8 bytes for each operation.
    slot: NonZeroU8,
    pub(crate) block: u32,
}

/// The places of an operation's entries, in the order of its keys.
#[derive(Debug)]
pub(crate) enum Places {
    Few([Place; FEW]),
    Many(Box<[Place]>),
}

/// The number of places that need no memory of their own.
const FEW: usize = 3;

impl Place {
    const NONE: Place = Place { shard: 0, slot: NonZeroU8::MAX, block: u32::MAX };

    pub(crate) fn new(shard: u16, slot: u8, block: u32) -> Self {
        Place { shard, slot: NonZeroU8::MIN.saturating_add(slot), block }
    }

    #[inline]
    fn is_made(self) -> bool {
        self.block != Place::NONE.block
    }

    /// Returns the entry's slot in the block.
    pub(crate) fn slot(self) -> u8 {
        self.slot.get() - 1
    }
}

impl Places {
    pub(crate) const NONE: Places = Places::Few([Place::NONE; FEW]);

    /// Makes room for the places of one entry for each of so many keys.
    pub(crate) fn of(keys: usize) -> Self {
        if keys <= FEW { Places::NONE } else { Places::Many(vec![Place::NONE; keys].into()) }
    }

    /// Sets the place of the entry for a key.
    pub(crate) fn set(&mut self, number: usize, place: Place) {
        match self {
            Places::Few(places) => places[number] = place,
            Places::Many(places) => places[number] = place,
        }
    }

    /// Returns the place of the first key's entry, if it has been made.
    #[inline]
    pub(crate) fn first(&self) -> Option<Place> {
        self.as_slice().first().copied().filter(|place| place.is_made())
    }

    /// Returns the places of the other keys' entries, as far as they have been made.
    #[inline]
    pub(crate) fn others(&self) -> impl Iterator<Item = Place> {
        self.as_slice().iter().skip(1).copied().take_while(|place| place.is_made())
    }

    #[inline]
    fn as_slice(&self) -> &[Place] {
        match self {
            Places::Few(places) => places,
            Places::Many(places) => places,
        }
    }
}

impl Default for Places {
    fn default() -> Self {
        Places::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_three_entries_take_24_bytes() {
        assert_eq!(size_of::<Places>(), 24);
    }
}
