//! The alarm: sleeps of the caller's until a deadline, which may end too early.

use crate::engine::clock::Clock;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How much longer the first sleep lasts after one that ended early. A sleep that rounds down to
/// milliseconds would end at once if it were made for the same time again.
const STEP: Duration = Duration::from_millis(1);

/// No sleep is made after one that ended early although it lasted longer by this: it may have ended
/// at once, and so may all others. A clock and sleeps that are to show the same time are not so far
/// apart; and doubled from a [`STEP`] on, it is reached with the 16th.
const MAX_LONGER: Duration = Duration::from_secs(60);

pin_project! {
    /// Waits for a deadline with sleeps that `make` returns. Whatever these do, it never wakes its
    /// task itself.
    pub(crate) struct Alarm<M, F> {
        make: M,
        // Of the sleep that waits, if one does.
        wait: Option<Wait>,
        #[pin]
        sleep: Option<F>,
    }
}

/// What a sleep was made for.
struct Wait {
    deadline: Instant,
    /// Later than the deadline after a sleep that ended early.
    until: Instant,
}

impl<M: FnMut(Instant) -> F, F: Future> Alarm<M, F> {
    pub(crate) fn new(make: M) -> Self {
        Alarm { make, wait: None, sleep: None }
    }

    /// Returns whether the clock has reached the deadline, of which `None` is never. Otherwise a
    /// sleep wakes the task, unless all that were made ended at once.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        deadline: Option<Instant>,
        clock: &Clock,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut own = self.project();
        // Put back when the sleep waits, and only then: one that is over must not be polled again,
        // nor one that has panicked, and `make` may panic before there is one.
        let wait = own.wait.take();
        let Some(deadline) = deadline else {
            own.sleep.set(None);
            return Poll::Pending;
        };
        let mut wait = match wait {
            Some(wait) if wait.deadline == deadline => wait,
            _ => {
                own.sleep.set(Some((own.make)(deadline)));
                Wait { deadline, until: deadline }
            }
        };
        while own.sleep.as_mut().as_pin_mut().is_some_and(|sleep| sleep.poll(context).is_ready()) {
            own.sleep.set(None);
            if deadline <= clock.now() {
                return Poll::Ready(());
            }
            let Some(longer) = wait.longer() else { return Poll::Pending };
            wait = longer;
            own.sleep.set(Some((own.make)(wait.until)));
        }
        *own.wait = Some(wait);
        Poll::Pending
    }
}

impl Wait {
    /// Returns what to wait for after a sleep that ended early, unless there were enough.
    fn longer(&self) -> Option<Wait> {
        let longer = self.until.saturating_duration_since(self.deadline);
        if longer > MAX_LONGER {
            return None;
        }
        let until = self.until.checked_add(longer + STEP)?;
        Some(Wait { deadline: self.deadline, until })
    }
}
