//! The budget: the bytes that requests and answers may take, of all connections together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a request or an answer takes at most without being counted. So heartbeats go on when there
/// is no room; and how many of these there are is bounded by the connections.
pub const FREE: usize = 16 << 10;

#[derive(Debug)]
pub struct Budget {
    max: usize,
    room: Arc<Semaphore>,
    /// How often there was no room.
    refused: AtomicU64,
}

/// Room that is taken, until this is dropped.
#[derive(Debug)]
pub struct Room(OwnedSemaphorePermit);

impl Room {
    pub fn bytes(&self) -> usize {
        self.0.num_permits()
    }
}

impl Budget {
    pub fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Budget { max, room: Arc::new(Semaphore::new(max)), refused: AtomicU64::new(0) }
    }

    /// Takes room for so many bytes, or all the room that there can be. Waits for it, one caller
    /// after the other.
    pub async fn take(&self, bytes: usize) -> Option<Room> {
        let room = Arc::clone(&self.room).acquire_many_owned(self.permits(bytes)).await;
        room.ok().map(Room) // It is never closed.
    }

    /// Takes room for so many bytes, if there is any.
    pub fn try_take(&self, bytes: usize) -> Option<Room> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(self.permits(bytes));
        if room.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        room.ok().map(Room)
    }

    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.max)).unwrap_or(u32::MAX)
    }

    pub fn max(&self) -> usize {
        self.max
    }

    pub fn taken(&self) -> usize {
        self.max - self.room.available_permits()
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
