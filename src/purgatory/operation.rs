//! The delayed operation: what a purgatory's user writes.

/// An operation that waits in a [`Purgatory`](crate::purgatory::Purgatory) until its condition
/// holds or its time is up: a fetch that waits for bytes, a produce that waits for its replicas.
///
/// The purgatory owns it, and calls its code with exclusive access, from whichever thread has a
/// reason to: no two of its methods ever run at the same time. Each operation ends exactly once:
/// it is completed, or it expires, or it is given back by a `cancel`, by `shutdown` or in an error.
/// Then it is dropped, or its new owner's.
///
/// No lock is held meanwhile: every method may use the purgatory, and the timer, as it likes. A
/// panic is contained, counted and reported; the operation counts as finished, and is dropped
/// without further calls.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::sync::{Arc, mpsc};
/// use tickwheel::purgatory::DelayedOperation;
///
/// /// A fetch that waits for `wanted` bytes.
/// struct Fetch {
///     wanted: usize,
///     available: Arc<AtomicUsize>,
///     response: mpsc::Sender<usize>,
/// }
///
/// impl DelayedOperation for Fetch {
///     fn try_complete(&mut self) -> bool {
///         self.available.load(Ordering::Acquire) >= self.wanted
///     }
///
///     // Whether there is enough or the time is up: the answer is what there is.
///     fn on_complete(&mut self) {
///         let _ = self.response.send(self.available.load(Ordering::Acquire));
///     }
/// }
/// ```
pub trait DelayedOperation: Send + 'static {
    /// Whether the condition holds now: `on_complete` follows if it does.
    ///
    /// `true` is final. The operation is completed then, once, whoever cancels it, shuts the
    /// purgatory down or finds its time up at the same moment. So this may claim what it has waited
    /// for, such as an item of a queue, and keep it for `on_complete`; see
    /// [`check_and_complete_up_to`](crate::purgatory::Purgatory::check_and_complete_up_to). If it
    /// returns false, or panics, it has to leave there what it found.
    ///
    /// Called twice when the operation is watched, then once for each trigger of one of its keys
    /// (twice if the key was named twice), and for several that come during a check once more: by
    /// the thread that is checking it, but only once; for those that come during that check as
    /// well, by the timer's executor. When the operation's time is up it is called once more at
    /// most, for a trigger that came before.
    ///
    /// Should be quick. Should not trigger a key of its own: each trigger during a check has it
    /// checked again, so the executor would be kept busy with it until its time is up.
    fn try_complete(&mut self) -> bool;

    /// The operation is done: its condition held, it was forced, or its time is up. Called once. In
    /// the latter two cases `try_complete` has not returned true, unless it was forced just then.
    fn on_complete(&mut self);

    /// Its time is up: called after `on_complete`, by the timer's executor; or, if that was during
    /// a check and the timer was shut down since, by the thread that was checking it.
    fn on_expiration(&mut self) {}

    /// It was cancelled while another thread was checking it, so that it could not be handed back
    /// to whoever cancelled it: that thread calls this instead, and drops it. Not if it found that
    /// the condition holds.
    fn on_cancellation(&mut self) {}
}

impl<O: DelayedOperation + ?Sized> DelayedOperation for Box<O> {
    fn try_complete(&mut self) -> bool {
        (**self).try_complete()
    }

    fn on_complete(&mut self) {
        (**self).on_complete();
    }

    fn on_expiration(&mut self) {
        (**self).on_expiration();
    }

    fn on_cancellation(&mut self) {
        (**self).on_cancellation();
    }
}
