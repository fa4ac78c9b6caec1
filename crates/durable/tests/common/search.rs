//! What a store lists, page by page.

use std::time::{Duration, SystemTime};
use tickwheel_durable::store::Store;
use tickwheel_durable::{Listed, Search, StoreTime};

/// Returns what a store lists by several searches, without what differs from store to store.
pub(crate) async fn listed(store: &impl Store) -> Vec<String> {
    let in_2984 = SystemTime::UNIX_EPOCH + Duration::from_secs(32_000_000_000);
    let soon = StoreTime::from_micros(1_000_000);
    let searches = [
        Search::new(3),
        Search::new(1).tag("tag 1"),
        Search::new(2).running(true),
        Search::new(2).running(false).key_prefix("key "),
        Search::new(9).key_prefix("key 3"),
        Search::new(1).due(in_2984..in_2984 + Duration::from_millis(4)),
    ];
    let mut told = Vec::new();
    for search in searches {
        let mut page = store.list(search.clone()).await.unwrap();
        while let Some(last) = page.last() {
            assert!(page.is_sorted_by_key(|listed| listed.at));
            let next = search.clone().after(last);
            let tell = |Listed { id, key, tag, at, attempts, running, .. }: &Listed| {
                // What was requeued is due now, and their clocks differ.
                let at = Some(*at).filter(|at| *at < soon || SystemTime::from(*at) >= in_2984);
                format!("{id} {key:?} {tag:?} {at:?} {attempts} {running}")
            };
            told.push(page.iter().map(tell).collect::<Vec<_>>().join(", "));
            page = store.list(next).await.unwrap();
        }
        told.push("-".to_owned());
    }
    told
}
