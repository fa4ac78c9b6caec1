//! Whatever is a duration, at its least and at its greatest.

use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::{Due, DurableBuilder, Entry, OpenStore, Outcome, When};

/// Sets an option.
type Set<O> = fn(DurableBuilder<O>, Duration) -> DurableBuilder<O>;

/// Has a timer fail on a node with each option, and the node leave. `builder` names a new store
/// each time.
pub(crate) async fn each_duration_is_taken<O: OpenStore>(builder: impl Fn() -> DurableBuilder<O>) {
    let options: [(&str, Set<O>); 4] = [
        ("lease", DurableBuilder::lease),
        ("window", DurableBuilder::window),
        ("retry_after", DurableBuilder::retry_after),
        ("time_limit", DurableBuilder::time_limit),
    ];
    for (name, set) in options {
        for value in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let timer = Timer::builder().start().unwrap();
            let handler = move |due: Due| {
                due.extend(value);
                async { Outcome::Failed("as it should".to_owned()) }
            };
            let node = set(builder(), value).start(&timer, handler).await.unwrap();
            node.pause(Some("another"), value).await.unwrap();
            node.schedule(Entry::unkeyed(Duration::ZERO, "x"))
                .await
                .unwrap();
            for when in [When::After(value), When::Spread(SystemTime::now(), value)] {
                let entry = Entry::keyed("put off", when, "x").debounce(value);
                node.schedule(entry).await.unwrap();
            }
            let lives = async {
                while node.stats().retried == 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                node.drain().await;
            };
            let ends = tokio::time::timeout(Duration::from_secs(60), lives).await;
            assert!(ends.is_ok(), "{name} {value:?}: {:?}", node.stats());
        }
    }
}
