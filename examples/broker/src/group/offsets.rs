//! Committed offsets: how far a group has come.

use crate::budget::Room;
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Offsets(BTreeMap<(Arc<str>, i32), Committed>);

pub(super) struct Committed {
    pub(super) offset: i64,
    pub(super) metadata: Option<StrBytes>,
    /// What the metadata takes of the budget.
    pub(super) _room: Room,
}

impl Offsets {
    pub(super) fn commit(&mut self, topic: &Arc<str>, partition: i32, committed: Committed) {
        self.0.insert((Arc::clone(topic), partition), committed);
    }

    pub(super) fn get(&self, topic: &str, partition: i32) -> Option<&Committed> {
        self.0.get(&(Arc::from(topic), partition))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&Arc<str>, i32)> {
        self.0.keys().map(|(topic, partition)| (topic, *partition))
    }

    pub(super) fn forget(&mut self, topic: &str) {
        self.0.retain(|(known, _), _| **known != *topic);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
