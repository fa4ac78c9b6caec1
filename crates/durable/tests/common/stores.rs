//! What holds on any store.

use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::Place;
use tickwheel_durable::{
    DeadTimer, Due, DurableBuilder, Entry, Listed, OpenStore, Outcome, Search, StoreTime, Touched,
    When,
};

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Returns what a future does, within a bound that only a bug exceeds.
pub(crate) async fn ends<A>(future: impl Future<Output = A>) -> A {
    let end = tokio::time::timeout(Duration::from_secs(60), future).await;
    end.expect("it ends")
}

/// Waits until something is so.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    ends(async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A timer, or a dead one.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    place: Place,
    key: Option<String>,
    tag: Option<String>,
    running: bool,
    payload: Vec<u8>,
}

impl From<Listed> for Found {
    fn from(listed: Listed) -> Self {
        Found {
            place: (&listed).into(),
            key: listed.key,
            tag: listed.tag,
            running: listed.running,
            payload: listed.payload,
        }
    }
}

impl From<DeadTimer> for Found {
    fn from(dead: DeadTimer) -> Self {
        assert_eq!((&*dead.reason, dead.attempts), ("no good", 1));
        Found {
            place: (&dead).into(),
            key: dead.key,
            tag: dead.tag,
            running: false,
            payload: dead.payload,
        }
    }
}

type Filter = Box<dyn Fn(&Found) -> bool>;

/// Returns searches, and what finds the same. The time is that of a timer.
fn searches(limit: u32, time: StoreTime) -> Vec<(Search, Filter)> {
    let all = || Search::new(limit);
    let begins = |start: &'static str| {
        move |it: &Found| it.key.as_ref().is_some_and(|key| key.starts_with(start))
    };
    let has = |tag: &'static str| move |it: &Found| it.tag.as_deref() == Some(tag);
    let from = || all().after(Place::before(time));
    vec![
        (all(), Box::new(|_| true)),
        (all().tag("tag 1"), Box::new(has("tag 1"))),
        (all().tag("no tag"), Box::new(|_| false)),
        (all().key_prefix("key 3"), Box::new(begins("key 3"))),
        (all().key_prefix("key %"), Box::new(|_| false)),
        (
            all().tag("tag 2").key_prefix("key 1"),
            Box::new(move |it| has("tag 2")(it) && begins("key 1")(it)),
        ),
        (from(), Box::new(move |it| it.place.due >= time)),
        (
            from().tag("tag 2"),
            Box::new(move |it| it.place.due >= time && has("tag 2")(it)),
        ),
    ]
}

/// Compares what is found by each search, page by page, with what a filter finds among all.
async fn compare(list: impl AsyncFn(Search) -> Vec<Found>) {
    let all = list(Search::new(1_000)).await;
    assert!(all.is_sorted_by_key(|found| found.place));
    let middle = all[all.len() / 2].place.due;
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
                if let Some(last) = page.last() {
                    next = search.clone().after(last.place);
                }
            }
        }
    }
}

/// Lists timers that wait, that run and wait again, and that have died.
pub(crate) async fn lists_have_pages<O: OpenStore>(builder: DurableBuilder<O>) {
    let timer = Timer::builder().start().unwrap();
    let handler = |due: Due| async move {
        match &*due.payload {
            b"dies" => Outcome::Dead("no good".to_owned()),
            _ => std::future::pending().await,
        }
    };
    let node = builder.start(&timer, handler).await.unwrap();
    let mut entries = Vec::new();
    for number in 0..40_u64 {
        // Some are due at once, some together.
        let (when, payload) = match number % 4 {
            0 => (When::After(Duration::ZERO), "dies"),
            1 => (When::After(Duration::ZERO), "runs"),
            _ => (
                When::At(SystemTime::UNIX_EPOCH + HOUR * (500_000 + number as u32 % 8)),
                "waits",
            ),
        };
        let entry = match number % 5 {
            0 => Entry::unkeyed(when, payload),
            _ => Entry::keyed(format!("key {number}"), when, payload),
        };
        entries.push(match number % 3 {
            0 => entry,
            tag => entry.tag(format!("tag {tag}")),
        });
    }
    node.schedule_many(entries).await.unwrap();
    until(async || node.stats().dead == 10 && node.stats().in_flight == 10).await;
    // Those wait behind runs, at other times.
    for number in [1, 9, 13] {
        let next = Entry::keyed(format!("key {number}"), HOUR, "next").tag("tag 2");
        node.schedule(next).await.unwrap();
    }
    let list = |search| async { node.list(search).await.unwrap() };
    compare(async |search| list(search).await.into_iter().map(Found::from).collect()).await;
    let dead = |search| async { node.dead(search).await.unwrap() };
    compare(async |search| dead(search).await.into_iter().map(Found::from).collect()).await;
}

/// Sets an option.
type Set<O> = fn(DurableBuilder<O>, Duration) -> DurableBuilder<O>;

/// Has a timer fail on a node with each duration at its least and at its greatest, and the node
/// leave. `builder` names a new store each time.
pub(crate) async fn each_duration_is_taken<O: OpenStore>(builder: impl Fn() -> DurableBuilder<O>) {
    let options: [Set<O>; 3] = [
        DurableBuilder::lease,
        DurableBuilder::retry_after,
        DurableBuilder::time_limit,
    ];
    for set in options {
        for value in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let timer = Timer::builder().start().unwrap();
            let handler = |_| async { Outcome::Failed("as it should".to_owned()) };
            let node = set(builder(), value).start(&timer, handler).await.unwrap();
            node.pause(Some("another"), value).await.unwrap();
            let entry = Entry::unkeyed(Duration::ZERO, "x");
            node.schedule(entry.expires_after(Duration::MAX))
                .await
                .unwrap();
            for when in [When::After(value), When::Spread(SystemTime::now(), value)] {
                let entry = Entry::keyed("put off", when, "x").debounce(value);
                node.schedule(entry.expires_after(value)).await.unwrap();
            }
            until(async || node.stats().retried > 0).await;
            ends(node.drain()).await;
        }
    }
}

/// Takes payloads and times at their limits through a life.
pub(crate) async fn extremes_of_payloads_and_times<O: OpenStore>(builder: DurableBuilder<O>) {
    let timer = Timer::builder().start().unwrap();
    let (sender, mut fired) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |due: Due| {
        let _ = sender.send(due);
        async { Outcome::Done }
    };
    let node = builder.start(&timer, handler).await.unwrap();
    let long = |byte: u8| vec![byte; 1 << 20];
    let early = SystemTime::UNIX_EPOCH - HOUR;
    let mut entries: Vec<Entry> = (0..8)
        .map(|byte| Entry::unkeyed(early, long(byte)))
        .collect();
    entries.push(Entry::unkeyed(Duration::ZERO, ""));
    node.schedule_many(entries).await.unwrap();
    let mut payloads = Vec::new();
    for _ in 0..9 {
        let due = ends(fired.recv()).await.expect("the node is there");
        if !due.payload.is_empty() {
            assert_eq!(due.planned, StoreTime::MIN);
        }
        payloads.push(due.payload);
    }
    payloads.sort();
    let mut expected = vec![Vec::new()];
    expected.extend((0..8).map(long));
    assert!(payloads == expected, "as they were");
    let far = [When::After(Duration::MAX), When::At(StoreTime::MAX.into())];
    for (number, name) in ["", "Gr\u{fc}\u{df}e", "%_'\\", &"k".repeat(512)]
        .into_iter()
        .enumerate()
    {
        let far = far[number % 2];
        node.schedule(Entry::keyed(name, far, long(9)).tag(name))
            .await
            .unwrap();
        assert_eq!(node.get(name).await.unwrap().unwrap().at, StoreTime::MAX);
        assert_eq!(node.touch(name, far).await.unwrap(), Touched::Moved);
        let search = Search::new(1).tag(name).key_prefix(name);
        let listed = node.list(search).await.unwrap();
        assert!(listed[0].payload == long(9) && listed[0].at == StoreTime::MAX);
        assert_eq!(node.cancel_tag(name).await.unwrap(), 1);
    }
    node.drain().await;
}

/// Timers die again while they are brought back, more than go in one step.
pub(crate) async fn each_is_requeued_once<O: OpenStore>(builder: DurableBuilder<O>) {
    let timer = Timer::builder().start().unwrap();
    let handler = |_| async { Outcome::Failed("no luck".to_owned()) };
    let node = builder
        .max_attempts(1)
        .start(&timer, handler)
        .await
        .unwrap();
    let entries = (0..2_500).map(|n| Entry::keyed(n.to_string(), Duration::ZERO, "x"));
    node.schedule_many(entries.collect()).await.unwrap();
    for deaths in [2_500, 5_000] {
        until(async || node.stats().dead == deaths).await;
        assert_eq!(node.requeue_all(None).await.unwrap(), 2_500);
    }
    node.drain().await;
}
