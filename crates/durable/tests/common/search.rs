//! What a store lists, of timers and of dead ones, page by page: the same as a filter finds.

use tickwheel_durable::store::{Place, Store};
use tickwheel_durable::{DeadTimer, Listed, Search, StoreTime};

/// A timer, or a dead one.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    place: Place,
    key: Option<String>,
    tag: Option<String>,
    running: bool,
    /// What does not differ from store to store.
    told: String,
}

impl From<&Listed> for Found {
    fn from(listed: &Listed) -> Self {
        let Listed {
            id,
            key,
            tag,
            payload,
            at,
            attempts,
            running,
            ..
        } = listed.clone();
        // What was requeued is due now, and their clocks differ.
        let fixed = Some(at.as_micros()).filter(|at| !(1_000_000..1 << 54).contains(at));
        let told = format!("{id} {key:?} {tag:?} {payload:?} {fixed:?} {attempts} {running}");
        Found {
            place: listed.into(),
            key,
            tag,
            running,
            told,
        }
    }
}

impl From<&DeadTimer> for Found {
    fn from(dead: &DeadTimer) -> Self {
        let DeadTimer {
            id,
            key,
            tag,
            payload,
            attempts,
            reason,
            ..
        } = dead.clone();
        assert!(
            (1 << 50..1 << 54).contains(&dead.died.as_micros()),
            "{dead:?}"
        ); // Now, or so.
        let told = format!("{id} {key:?} {tag:?} {payload:?} {attempts} {reason}");
        Found {
            place: dead.into(),
            key,
            tag,
            running: false,
            told,
        }
    }
}

type Filter = Box<dyn Fn(&Found) -> bool>;

/// Returns searches, and what finds the same. Of the times, one is that of a timer.
fn searches(limit: u32, time: StoreTime) -> Vec<(Search, Filter)> {
    let begins = |start: &'static str| {
        move |it: &Found| it.key.as_ref().is_some_and(|key| key.starts_with(start))
    };
    let until = |end: StoreTime| Search::new(limit).between(StoreTime::MIN.into()..end.into());
    let from = |start: StoreTime| Search::new(limit).between(start.into()..StoreTime::MAX.into());
    vec![
        (Search::new(limit), Box::new(|_| true)),
        (
            Search::new(limit).tag("tag 1"),
            Box::new(|it| it.tag.as_deref() == Some("tag 1")),
        ),
        (
            Search::new(limit).key_prefix("key 3"),
            Box::new(begins("key 3")),
        ),
        (Search::new(limit).running(true), Box::new(|it| it.running)),
        (
            Search::new(limit).running(false).key_prefix("key "),
            Box::new(move |it| !it.running && begins("key ")(it)),
        ),
        (until(time), Box::new(move |it| it.place.due < time)),
        (
            from(time).tag("tag 2"),
            Box::new(move |it| it.place.due >= time && it.tag.as_deref() == Some("tag 2")),
        ),
    ]
}

/// Returns what a store lists. Panics if what it finds by a search is something else than a filter
/// finds among all.
pub(crate) async fn listed(store: &impl Store) -> Vec<String> {
    let timers = async |search| {
        store
            .list(search)
            .await
            .unwrap()
            .iter()
            .map(Found::from)
            .collect()
    };
    let dead = async |search| {
        store
            .dead(search)
            .await
            .unwrap()
            .iter()
            .map(Found::from)
            .collect()
    };
    [found(timers).await, found(dead).await].concat()
}

async fn found(list: impl AsyncFn(Search) -> Vec<Found>) -> Vec<String> {
    let mut all = list(Search::new(1_000)).await;
    assert!(all.is_sorted_by_key(|found| found.place));
    let middle = all
        .get(all.len() / 2)
        .map_or(StoreTime::MIN, |found| found.place.due);
    for limit in [1, 3] {
        for (search, is_meant) in searches(limit, middle) {
            let mut next = search.clone();
            let meant: Vec<Found> = all
                .iter()
                .filter(|found| is_meant(found))
                .cloned()
                .collect();
            for page in meant.chunks(limit as usize).chain([&[][..]]) {
                assert_eq!(list(next.clone()).await, page, "{next:?}");
                next = page
                    .last()
                    .map_or(next, |last| search.clone().after(last.place));
            }
        }
    }
    all.sort_by_key(|found| found.place.id);
    all.into_iter().map(|found| found.told).collect()
}
