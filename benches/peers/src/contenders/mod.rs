//! The contenders, one a file.

mod btree;
mod delay_queue;
mod driven;
mod hash_wheel;
mod keyed_timer;
mod lazy_heap;
mod local;
mod locked;
mod nexus;
mod queue;
mod queue_and_map;
mod sleepers;
mod sleeping_tasks;
mod tickwheel;
mod timer_queue;

pub use btree::{BTree, OrderedMap};
pub use delay_queue::TokioDelayQueue;
pub use driven::DrivenQueue;
pub use hash_wheel::HashWheel;
pub use keyed_timer::KeyedTimer;
pub use lazy_heap::{Heap, LazyHeap};
pub use local::Local;
pub use nexus::Nexus;
pub use queue_and_map::QueueAndMap;
pub use sleepers::{FuturesTimer, Pingora, TokioSleep};
pub use sleeping_tasks::SleepingTasks;
pub use tickwheel::Tickwheel;
pub use timer_queue::Queue;
