//! From Kafka's `DelayedOperationPurgatory`: a produce that waits for its replicas.

use crate::scene::Scene;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

/// A produce that is answered when two replicas have its records.
struct DelayedProduce {
    partition: &'static str,
    replicas: Arc<AtomicUsize>,
    scene: Scene,
}

impl DelayedOperation for DelayedProduce {
    /// Returns whether the condition holds, and does no more: `on_complete` follows by itself if it
    /// does.
    fn try_complete(&mut self) -> bool {
        self.replicas.load(Ordering::Acquire) >= 2
    }

    /// Completes the operation once, also when the time is up.
    fn on_complete(&mut self) {
        let end = if self.try_complete() { "answered" } else { "timed out" };
        self.scene.tell(&format!("{}: {end}", self.partition));
    }
}

pub(crate) fn play(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let timer: Timer = scene.timer(Timer::builder())?;
    let produces = Purgatory::new(&timer);
    let partitions = ["orders-0", "orders-1"].map(|name| (name, Arc::new(AtomicUsize::new(0))));
    for (partition, replicas) in &partitions {
        let replicas = Arc::clone(replicas);
        let produce = DelayedProduce { partition, replicas, scene: scene.clone() };
        let _ =
            produces.try_complete_else_watch(produce, Duration::from_millis(500), &[*partition])?;
    }
    // First the change, then the trigger.
    let fetched = |(partition, replicas): &(&'static str, Arc<AtomicUsize>)| {
        replicas.fetch_add(1, Ordering::Release);
        let completed = produces.check_and_complete(partition);
        scene.tell(&format!("{partition}: a replica has it, {completed} produces completed"));
    };
    scene.wait_until(&timer, 100);
    partitions.iter().for_each(fetched);
    scene.wait_until(&timer, 200);
    fetched(&partitions[0]);
    scene.wait_until(&timer, 600);
    Ok("\
100 ms  orders-0: a replica has it, 0 produces completed
100 ms  orders-1: a replica has it, 0 produces completed
200 ms  orders-0: answered
200 ms  orders-0: a replica has it, 1 produces completed
500 ms  orders-1: timed out
")
}
