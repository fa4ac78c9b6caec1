//! The slots that a node owns, and what it has in flight in each.

use crate::store::{Claim, NodeId, Owned, Place};
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tickwheel_leases::Lease;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Slots {
    /// Locked for a few steps for each slot or claim in a batch; the lock of the leases may be
    /// taken under it, by `held`.
    state: Mutex<State>,
    begun: Notify,
}

#[derive(Default)]
struct State {
    /// The lease, and when it was asked for. `None` before the node has joined and after it has
    /// lost it.
    lease: Option<(Lease<NodeId>, Instant)>,
    owned: HashMap<u32, Slot>,
    /// Claims under way or not acknowledged, also those of slots that were lost meanwhile.
    in_flight: HashMap<Owned, u32>,
    /// Slots that were given to the node and are not loaded yet.
    news: Vec<u32>,
}

struct Slot {
    epoch: i64,
    /// It will be released: nothing in it is claimed any more.
    leaves: bool,
}

impl State {
    /// Returns the lease, as long as it is held.
    fn held(&self) -> Option<&(Lease<NodeId>, Instant)> {
        self.lease.as_ref().filter(|(lease, _)| lease.is_held())
    }
}

impl Slots {
    pub(crate) fn begin(&self, lease: Lease<NodeId>, asked: Instant) {
        lock(&self.state).lease = Some((lease, asked));
        self.begun.notify_one();
    }

    /// Waits until the node has begun since the last call.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Returns for how long the node has had its lease; zero if it has none.
    pub(crate) fn held_for(&self, now: Instant) -> Duration {
        let state = lock(&self.state);
        state.held().map_or(Duration::ZERO, |(_, asked)| {
            now.saturating_duration_since(*asked)
        })
    }

    /// Owns nothing any more; returns whether it was still the owner.
    pub(crate) fn end(&self) -> bool {
        let mut state = lock(&self.state);
        state.owned.clear();
        state.news.clear();
        let lease = state.lease.take();
        drop(state);
        lease.is_some_and(|(lease, _)| lease.release())
    }

    /// Returns the node, as long as its lease is held: by its own clock, counted from before the
    /// store was asked for it.
    pub(crate) fn node(&self) -> Option<NodeId> {
        lock(&self.state).held().map(|(lease, _)| *lease.key())
    }

    pub(crate) fn owns(&self, slot: u32) -> bool {
        lock(&self.state).owned.contains_key(&slot)
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.state).owned.len()
    }

    pub(crate) fn all(&self) -> Vec<u32> {
        lock(&self.state).owned.keys().copied().collect()
    }

    /// Takes over what the store says that the node owns. It may have lost some while it was held
    /// up, or have been given some by a call whose answer was lost.
    pub(crate) fn reconcile(&self, owned: &[Owned]) {
        let mut state = lock(&self.state);
        let mut former = std::mem::take(&mut state.owned);
        for Owned { slot, epoch } in owned.iter().copied() {
            let same = former.remove(&slot).filter(|former| former.epoch == epoch);
            if same.is_none() {
                state.news.push(slot);
            }
            state.owned.insert(
                slot,
                same.unwrap_or(Slot {
                    epoch,
                    leaves: false,
                }),
            );
        }
    }

    /// Returns the slots that were given to the node since the last call.
    pub(crate) fn take_news(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.state).news)
    }

    /// Begins to leave slots until no more than `keep` stay, at most `at_most` more at a time.
    /// First those with nothing in flight: a slow handler keeps its slot from being released, and
    /// until then nobody claims there.
    pub(crate) fn leave(&self, keep: usize, at_most: usize) {
        let mut state = lock(&self.state);
        let State {
            owned, in_flight, ..
        } = &mut *state;
        let staying = owned.iter_mut().filter(|(_, row)| !row.leaves);
        let (busy, idle): (Vec<_>, Vec<_>) = staying.partition(|(slot, row)| {
            in_flight.contains_key(&Owned {
                slot: **slot,
                epoch: row.epoch,
            })
        });
        let surplus = (busy.len() + idle.len()).saturating_sub(keep).min(at_most);
        idle.into_iter()
            .chain(busy)
            .take(surplus)
            .for_each(|(_, row)| row.leaves = true);
    }

    /// Takes out the slots that the node leaves and has nothing in flight in any more.
    pub(crate) fn take_left(&self) -> Vec<Owned> {
        let mut state = lock(&self.state);
        let State {
            owned, in_flight, ..
        } = &mut *state;
        let name = |slot: &u32, epoch| Owned { slot: *slot, epoch };
        let leaving = owned.iter().filter(|(_, row)| row.leaves);
        let left = leaving.map(|(slot, row)| name(slot, row.epoch));
        let left: Vec<Owned> = left.filter(|slot| !in_flight.contains_key(slot)).collect();
        owned.retain(|slot, row| !left.contains(&name(slot, row.epoch)));
        left
    }

    /// Begins claims on places, as far as the node may claim there now. In one step with the look:
    /// so that no slot is released between.
    pub(crate) fn begin_claims(&self, places: Vec<Place>) -> (Vec<Claim>, Vec<Place>) {
        let mut state = lock(&self.state);
        let held = state.held().is_some();
        let (mut claims, mut refused) = (Vec::with_capacity(places.len()), Vec::new());
        for place in places {
            match state
                .owned
                .get(&place.slot)
                .filter(|slot| held && !slot.leaves)
            {
                Some(&Slot { epoch, .. }) => {
                    let slot = Owned {
                        slot: place.slot,
                        epoch,
                    };
                    *state.in_flight.entry(slot).or_default() += 1;
                    claims.push(Claim { place, epoch });
                }
                None => refused.push(place),
            }
        }
        (claims, refused)
    }

    pub(crate) fn end_claim(&self, claim: &Claim) {
        let slot = Owned {
            slot: claim.place.slot,
            epoch: claim.epoch,
        };
        let mut state = lock(&self.state);
        if let Some(count) = state.in_flight.get_mut(&slot) {
            *count -= 1;
            if *count == 0 {
                state.in_flight.remove(&slot);
            }
        }
    }

    /// Returns whether what was claimed is still this node's.
    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        let state = lock(&self.state);
        let slot = state.owned.get(&claim.place.slot);
        state.held().is_some() && slot.is_some_and(|slot| slot.epoch == claim.epoch)
    }

    pub(crate) fn in_flight(&self) -> u64 {
        lock(&self.state)
            .in_flight
            .values()
            .map(|count| u64::from(*count))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreTime;

    /// Slot 1 of 0, 1 and 2 has something in flight.
    fn slots() -> Slots {
        let slots = Slots::default();
        slots.reconcile(&[0, 1, 2].map(|slot| Owned { slot, epoch: 7 }));
        lock(&slots.state)
            .in_flight
            .insert(Owned { slot: 1, epoch: 7 }, 1);
        slots
    }

    #[test]
    fn idle_slots_leave_before_one_in_which_a_handler_runs() {
        // The order of a map is another one each time.
        for _ in 0..50 {
            let slots = slots();
            slots.leave(1, 2);
            let mut left: Vec<u32> = slots.take_left().iter().map(|owned| owned.slot).collect();
            left.sort_unstable();
            assert_eq!((left, slots.all()), (vec![0, 2], vec![1]));
        }
    }

    #[test]
    fn at_most_so_many_leave_at_a_time_and_the_busy_one_when_it_has_ended() {
        let slots = slots();
        slots.leave(0, 1);
        assert_eq!(slots.take_left().len(), 1);
        slots.leave(0, 2);
        assert_eq!((slots.take_left().len(), slots.all()), (1, vec![1]));
        let place = Place {
            due: StoreTime::MIN,
            slot: 1,
            id: 0,
        };
        slots.end_claim(&Claim { place, epoch: 7 });
        assert_eq!((slots.take_left().len(), slots.len()), (1, 0));
    }
}
