//! What holds on any store, on a file.

use crate::stores::{
    each_duration_is_taken, each_is_requeued_once, extremes_of_payloads_and_times, lists_have_pages,
};
use std::sync::atomic::{AtomicU32, Ordering};
use tickwheel_durable::Durable;

#[tokio::test]
async fn lists() {
    let folder = tempfile::tempdir().unwrap();
    lists_have_pages(Durable::sqlite(folder.path().join("timers"))).await;
}

#[tokio::test]
async fn durations() {
    let folder = tempfile::tempdir().unwrap();
    let count = AtomicU32::new(0);
    let file = || {
        folder
            .path()
            .join(count.fetch_add(1, Ordering::Relaxed).to_string())
    };
    each_duration_is_taken(|| Durable::sqlite(file())).await;
}

#[tokio::test]
async fn extremes() {
    let folder = tempfile::tempdir().unwrap();
    extremes_of_payloads_and_times(Durable::sqlite(folder.path().join("timers"))).await;
}

#[tokio::test]
async fn requeues() {
    let folder = tempfile::tempdir().unwrap();
    each_is_requeued_once(Durable::sqlite(folder.path().join("timers"))).await;
}
