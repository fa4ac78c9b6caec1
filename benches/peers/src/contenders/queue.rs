//! What a service keeps its timers in, if it writes that itself. It knows no lock and no thread.

/// Timers by deadline.
pub trait DeadlineQueue: Default + Send + 'static {
    type Handle: Send;

    fn add(&mut self, deadline: u64, task: u64) -> Self::Handle;

    fn cancel(&mut self, handle: Self::Handle) -> bool;

    /// Returns the deadline of the first entry, which may have been cancelled.
    fn first(&self) -> Option<u64>;

    /// Takes the first entry out if it is due, with its task if it was not cancelled. Returns
    /// whether it was due.
    fn pop(&mut self, now: u64, expired: impl FnOnce(u64)) -> bool;
}
