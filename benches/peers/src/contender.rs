//! What every contender can do: the same work is run on each through this one face.

/// A timer structure on a virtual clock of milliseconds that starts at 0.
pub trait Contender {
    /// A deadline as the contender wants it, made before the time is taken.
    type Deadline: Copy;
    /// Names a timer that was added.
    type Handle;

    fn new() -> Self;

    fn deadline(&self, at_ms: u64) -> Self::Deadline;

    fn add(&mut self, deadline: Self::Deadline, task: u64) -> Self::Handle;

    /// Cancels a timer. Returns whether it was still pending.
    fn cancel(&mut self, handle: Self::Handle) -> bool;

    /// Moves a timer to a later deadline, if the contender can.
    fn touch(&mut self, _handle: &Self::Handle, _deadline: Self::Deadline) -> Option<()> {
        None
    }

    /// Steps the clock from 1 to `last_ms`, a millisecond at a time, and expires what is due. The
    /// number that expired and the sum of their tasks.
    fn expire_all(&mut self, last_ms: u64) -> (u64, u64);
}
