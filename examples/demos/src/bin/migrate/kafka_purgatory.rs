//! From Kafka's `DelayedOperationPurgatory`: a produce that waits for its replicas.

use crate::scene::Scene;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

pub(crate) const OUTCOME: [(u64, &str); 4] = [
    (100, "orders-0: 0 produces completed"),
    (200, "orders-0: answered, 2 replicas have it"),
    (200, "orders-0: 1 produces completed"),
    (500, "orders-1: timed out, 1 replicas have it"),
];

/// A produce that is answered when two replicas have its records.
struct DelayedProduce {
    partition: &'static str,
    replicas: Arc<AtomicUsize>,
    scene: Scene,
}

impl DelayedProduce {
    fn replicas(&self) -> usize {
        self.replicas.load(Ordering::Acquire)
    }
}

impl DelayedOperation for DelayedProduce {
    /// Returns whether the condition holds, and does no more: `on_complete` follows by itself if it
    /// does.
    fn try_complete(&mut self) -> bool {
        self.replicas() >= 2
    }

    /// Completes the operation once, also when the time is up.
    fn on_complete(&mut self) {
        let (partition, replicas) = (self.partition, self.replicas());
        let end = if replicas >= 2 { "answered" } else { "timed out" };
        self.scene.tell(format!("{partition}: {end}, {replicas} replicas have it"));
    }
}

pub(crate) fn play(scene: &Scene) -> Result<(), Box<dyn Error>> {
    let timer = scene.start(Timer::builder())?;
    let produces = Purgatory::new(&timer);
    let partitions = ["orders-0", "orders-1"].map(|name| (name, Arc::new(AtomicUsize::new(0))));
    for (partition, replicas) in &partitions {
        let replicas = Arc::clone(replicas);
        let produce = DelayedProduce { partition, replicas, scene: scene.clone() };
        let watch =
            produces.try_complete_else_watch(produce, Duration::from_millis(500), &[*partition])?;
        assert!(!watch.is_completed(), "no replica has it yet");
    }
    // A replica fetches: first the change, then the trigger.
    let fetched = |(partition, replicas): &(&'static str, Arc<AtomicUsize>)| {
        replicas.fetch_add(1, Ordering::Release);
        produces.check_and_complete(partition)
    };
    scene.wait_until(&timer, 100);
    scene.tell(format!("orders-0: {} produces completed", fetched(&partitions[0])));
    scene.wait_until(&timer, 200);
    let completed = fetched(&partitions[0]);
    scene.tell(format!("orders-0: {completed} produces completed"));
    fetched(&partitions[1]);
    scene.wait_until(&timer, 600);
    Ok(())
}
