//! Batches as columns: one array for each, so that a statement is the same for any number of rows.

use crate::store::postgres::link::Param;
use crate::store::{Claim, KeyName, Place};
use crate::time::StoreTime;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub(super) fn slot(slot: u32) -> i32 {
    slot as i32 // Slots are numbers of this type in the database.
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

/// Splits names into slots and keys.
pub(super) fn names(names: &[KeyName]) -> (Vec<i32>, Vec<&str>) {
    names.iter().map(|name| (slot(name.slot), name.key.as_str())).unzip()
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
