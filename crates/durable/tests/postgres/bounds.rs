//! What holds on any store, on PostgreSQL.

use crate::stores::{
    each_duration_is_taken, each_is_requeued_once, extremes_of_payloads_and_times, lists_have_pages,
};
use crate::{SERVER, builder, name};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists() {
    lists_have_pages(builder(SERVER.config(), &name())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durations() {
    each_duration_is_taken(|| builder(SERVER.config(), &name())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extremes() {
    extremes_of_payloads_and_times(builder(SERVER.config(), &name())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeues() {
    each_is_requeued_once(builder(SERVER.config(), &name())).await;
}
