//! The store in memory, on a clock that tests set.

use super::*;
use crate::store::conformance::beside::beside_the_model;
use crate::store::conformance::{Bench, everything, groups, seeds, table, timer};
use crate::store::{Ack, Bulk, Ending, Operations};
use tickwheel::ManualClock;

struct InMemory {
    store: Memory,
    clock: ManualClock,
}

impl Bench for InMemory {
    type Store = Memory;

    fn store(&self) -> &Memory {
        &self.store
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    async fn clear(&self) {
        *self.store.lock() = Table::default();
    }

    async fn state(&self, name: &Name) -> &'static str {
        let state = self.store.lock();
        state.rows.get(name).map_or("none", Row::state)
    }
}

fn bench() -> InMemory {
    let clock = ManualClock::new();
    let store = Memory::new(clock.clone());
    InMemory { store, clock }
}

#[tokio::test]
async fn each_cell_of_the_table_holds() {
    table(&bench()).await;
}

#[tokio::test]
async fn what_has_crashed_is_taken_over_in_groups() {
    groups(&bench()).await;
}

/// The model is compared with itself here: what matters is the ledger.
#[tokio::test]
async fn the_ledger_finds_nothing() {
    let bench = bench();
    for seed in seeds(200) {
        beside_the_model(&bench, seed, 200).await;
    }
}

/// A clock that a test sets may stand still.
#[tokio::test]
async fn tokens_rise_though_no_time_passes() {
    let store = bench().store;
    let mut last = 0;
    for ending in [
        Ending::GiveBack,
        Ending::GiveBack,
        Ending::Done,
        Ending::Done,
    ] {
        let name = Name::of_key("key");
        let timer = timer(&name, 1, Duration::ZERO);
        store.schedule(vec![timer], false).await.unwrap();
        let claims = store.claim(everything(1)).await.unwrap();
        let token = claims.rows[0].token;
        assert!(token > last, "{token} after {last}");
        last = token;
        let ack = Ack {
            name,
            token,
            ending,
        };
        store.acknowledge(vec![ack]).await.unwrap();
    }
}

#[tokio::test]
async fn a_requeued_timer_has_a_later_token_than_any_of_its_key() {
    let store = bench().store;
    let name = Name::of_key("key");
    let claim = async || {
        let claims = store.claim(everything(1)).await.unwrap();
        claims.rows[0].token
    };
    let end = async |token, ending| {
        let name = name.clone();
        let ack = Ack {
            name,
            token,
            ending,
        };
        store.acknowledge(vec![ack]).await.unwrap();
    };
    let schedule = async |id| {
        let timer = timer(&name, id, Duration::ZERO);
        store.schedule(vec![timer], false).await.unwrap();
    };
    schedule(1).await;
    end(claim().await, Ending::Dead("no good".to_owned())).await;
    schedule(2).await;
    let last = claim().await;
    end(last, Ending::Done).await;
    store.bulk(Bulk::RequeueOne(1), None, 1).await.unwrap();
    assert!(claim().await > last);
}
