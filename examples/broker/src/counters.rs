//! Counters: what has been asked, and what came to nothing.

use crate::wire::{Api, SUPPORTED};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// In the order of [`SUPPORTED`].
    requests: [AtomicU64; SUPPORTED.len()],
    /// Frames that were no request of ours.
    pub(crate) malformed: AtomicU64,
    /// Connections that were closed at once, because there were too many.
    pub(crate) refused: AtomicU64,
    pub(crate) connections: AtomicUsize,
}

impl Counters {
    pub(crate) fn count(&self, api: &Api) {
        if let Some(place) = SUPPORTED.iter().position(|other| other.key == api.key) {
            self.requests[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = (&'static Api, u64)> + '_ {
        SUPPORTED
            .iter()
            .zip(&self.requests)
            .map(|(api, count)| (api, count.load(Ordering::Relaxed)))
    }
}
