//! Batches as columns: one array for each, so that a statement is the same for any number of rows.

use crate::store::postgres::link::Param;
use crate::store::{Claim, KeyName, Owned, Place};
use crate::time::StoreTime;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub(super) fn slot(slot: u32) -> i32 {
    slot as i32 // Slots are numbers of this type in the database.
}

/// Slots, and a number for each: epochs.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) slots: Vec<i32>,
    pub(super) epochs: Vec<i64>,
}

impl Slots {
    pub(super) fn params(&self) -> [Param<'_>; 2] {
        [(&self.slots, Type::INT4_ARRAY), (&self.epochs, Type::INT8_ARRAY)]
    }
}

impl FromIterator<Owned> for Slots {
    fn from_iter<I: IntoIterator<Item = Owned>>(owned: I) -> Self {
        let split = |owned: Owned| (slot(owned.slot), owned.epoch);
        let (slots, epochs) = owned.into_iter().map(split).unzip();
        Slots { slots, epochs }
    }
}

/// Claims: slots, dues, ids, epochs.
#[derive(Default)]
pub(super) struct Claims {
    slots: Vec<i32>,
    dues: Vec<i64>,
    ids: Vec<i64>,
    epochs: Vec<i64>,
}

impl Claims {
    pub(super) fn push(&mut self, claim: &Claim) {
        self.slots.push(slot(claim.place.slot));
        self.dues.push(claim.place.due.as_micros());
        self.ids.push(claim.place.id);
        self.epochs.push(claim.epoch);
    }

    pub(super) fn params(&self) -> [Param<'_>; 4] {
        [
            (&self.slots, Type::INT4_ARRAY),
            (&self.dues, Type::INT8_ARRAY),
            (&self.ids, Type::INT8_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
        ]
    }
}

/// Keys and their slots.
pub(super) struct Keys {
    slots: Vec<i32>,
    keys: Vec<String>,
}

impl Keys {
    pub(super) fn params(&self) -> [Param<'_>; 2] {
        [(&self.slots, Type::INT4_ARRAY), (&self.keys, Type::TEXT_ARRAY)]
    }
}

impl<'a> FromIterator<&'a KeyName> for Keys {
    fn from_iter<I: IntoIterator<Item = &'a KeyName>>(names: I) -> Self {
        let split = |name: &KeyName| (slot(name.slot), name.key.clone());
        let (slots, keys) = names.into_iter().map(split).unzip();
        Keys { slots, keys }
    }
}

/// Reads a place out of three columns: slot, due, id.
pub(super) fn place(row: &Row, first: usize) -> Place {
    let due = StoreTime::from_micros(row.get(first + 1));
    Place { due, slot: row.get::<_, i32>(first).unsigned_abs(), id: row.get(first + 2) }
}

/// Reads a name out of two columns: slot, key.
pub(super) fn name(row: &Row) -> KeyName {
    KeyName { slot: row.get::<_, i32>(0).unsigned_abs(), key: row.get(1) }
}
