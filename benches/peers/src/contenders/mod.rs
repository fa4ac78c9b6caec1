//! The contenders, one a file.

mod btree;
mod delay_queue;
mod hash_wheel;
mod lazy_heap;
mod local;
mod nexus;
mod tickwheel;
mod timer_queue;

pub use btree::BTree;
pub use delay_queue::TokioDelayQueue;
pub use hash_wheel::HashWheel;
pub use lazy_heap::LazyHeap;
pub use local::Local;
pub use nexus::Nexus;
pub use tickwheel::Tickwheel;
pub use timer_queue::Queue;
