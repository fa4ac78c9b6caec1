//! What the calls on timers answer.

use crate::time::StoreTime;

/// What became of a schedule, once it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduled {
    /// There was no timer of this key, or the entry has none.
    New,
    /// The key's former timer was replaced. If that one's handler was running, it still runs to its
    /// end, but its outcome changes nothing any more.
    Replaced,
}

/// What became of a cancel. Each answer is certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The timer is gone, here is its payload; no handler will get it.
    Cancelled(Vec<u8>),
    /// A handler has it, or had it when its node died: then another node will run it again.
    Running,
    /// The key has no timer.
    Unknown,
}

/// What became of a touch. Each answer is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The timer is due at the new moment.
    Moved,
    /// A handler has it: too late to move it.
    Running,
    /// The key has no timer.
    Unknown,
}

/// How a timer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// When it is due.
    pub at: StoreTime,
    /// What it carries.
    pub payload: Vec<u8>,
    /// How often it was claimed; where the answer was lost that does not count.
    pub attempts: u32,
    /// Whether a handler has it.
    pub running: bool,
}

/// A timer that was given up: it waits for somebody to look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadTimer {
    /// Names it, for [`requeue`](crate::Durable::requeue).
    pub id: i64,
    /// The key, if it has one.
    pub key: Option<String>,
    /// What it carries.
    pub payload: Vec<u8>,
    /// How often it was claimed; where the answer was lost that does not count.
    pub attempts: u32,
    /// Why it was given up.
    pub reason: String,
}
