//! The alarm: sleeps of the caller's until a deadline, which may end too early.

use crate::engine::clock::Clock;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How much longer a sleep is, at least, than the one before that ended early. A sleep that rounds
/// down to milliseconds would end at once if it were made for the same time again.
const STEP: Duration = Duration::from_millis(1);

/// While the clock stands still, each sleep that ends early is followed by one that is longer by
/// twice as much, from a [`STEP`] up to this, which the 17th reaches. Then no more are made: sleeps
/// that end at once would otherwise keep the task busy for ever.
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
    /// By how much it is longer than the sleep before, at least.
    longer: Duration,
    /// What the clock showed when the sleep was made.
    made_at: Instant,
}

impl<M: FnMut(Instant) -> F, F: Future> Alarm<M, F> {
    pub(crate) fn new(make: M) -> Self {
        Alarm {
            make,
            wait: None,
            sleep: None,
        }
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
                let made_at = clock.now();
                own.sleep.set(Some((own.make)(deadline)));
                Wait {
                    deadline,
                    until: deadline,
                    longer: Duration::ZERO,
                    made_at,
                }
            }
        };
        while own
            .sleep
            .as_mut()
            .as_pin_mut()
            .is_some_and(|sleep| sleep.poll(context).is_ready())
        {
            own.sleep.set(None);
            let now = clock.now();
            if deadline <= now {
                return Poll::Ready(());
            }
            let Some(longer) = wait.after_early(now) else {
                return Poll::Pending;
            };
            wait = longer;
            own.sleep.set(Some((own.make)(wait.until)));
        }
        *own.wait = Some(wait);
        Poll::Pending
    }
}

impl Wait {
    /// Returns what to wait for after a sleep that ended early, at `now` by the clock; `None` if
    /// there were enough.
    fn after_early(&self, now: Instant) -> Option<Wait> {
        let has_gone_on = now.saturating_duration_since(self.made_at) >= STEP;
        let longer = match has_gone_on {
            // However often a sleep is early, the deadline comes.
            true => STEP,
            false => (2 * self.longer).max(STEP),
        };
        if longer > MAX_LONGER {
            return None;
        }
        // By what is left on the clock: beside a clock at half the speed, a sleep of an hour ends
        // half an hour early, and steps of milliseconds would take as long to get there.
        let left = self.deadline.saturating_duration_since(now);
        let until = self.until.checked_add(longer.max(left))?;
        Some(Wait {
            deadline: self.deadline,
            until,
            longer,
            made_at: now,
        })
    }
}
