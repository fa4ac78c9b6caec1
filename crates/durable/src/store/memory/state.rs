//! What a store in memory holds under its lock.

use crate::store::memory::Fault;
use crate::store::memory::timers::Timers;
use crate::store::{Claim, NodeId, Place};
use crate::time::StoreTime;
use std::collections::{BTreeMap, HashMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) owners: BTreeMap<u32, SlotRow>,
    pub(super) members: BTreeMap<NodeId, Member>,
    pub(super) inbox: Vec<(NodeId, Place)>,
    pub(super) timers: Timers,
    pub(super) faults: HashMap<&'static str, VecDeque<Fault>>,
}

#[derive(Debug, Default)]
pub(super) struct SlotRow {
    pub(super) owner: Option<NodeId>,
    pub(super) epoch: i64,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) lease_until: StoreTime,
    pub(super) horizon: StoreTime,
}

impl State {
    /// Hints at a place to its slot's owner, if that has loaded past it.
    pub(super) fn hint(&mut self, place: Place, known_to: Option<NodeId>) {
        let owner = self.owners.get(&place.slot).and_then(|row| row.owner);
        let member = owner.and_then(|owner| Some((owner, self.members.get(&owner)?)));
        if let Some((owner, member)) = member {
            if place.due < member.horizon && known_to != Some(owner) {
                self.inbox.push((owner, place));
            }
        }
    }

    pub(super) fn owns(&self, node: NodeId, claim: &Claim) -> bool {
        let row = self.owners.get(&claim.place.slot);
        row.is_some_and(|row| row.owner == Some(node) && row.epoch == claim.epoch)
    }

    pub(super) fn give_up(&mut self, node: NodeId) {
        for row in self.owners.values_mut().filter(|row| row.owner == Some(node)) {
            row.owner = None;
        }
        self.members.remove(&node);
    }
}
