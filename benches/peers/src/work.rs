//! The single-threaded work: W1 to W4 and touch, on a virtual clock.

use std::time::Instant;

/// A small generator, the same sequence in every run: all contenders get the same deadlines.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self::numbered(0)
    }

    /// Returns the `n`th of several tasks that differ.
    pub fn numbered(n: u64) -> Self {
        Random(0x2545_F491_4F6C_DD1D + n)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Does what is measured. A function of its own, so that `tickwheel-counts` finds it by its name,
/// and counts what happens inside.
#[inline(never)]
pub fn measured<R>(work: impl FnOnce() -> R) -> R {
    work()
}

pub fn nanos_per(started: Instant, count: u64) -> f64 {
    started.elapsed().as_nanos() as f64 / count as f64
}

/// Adds `count` timers over `last_ms` and expires them in steps of 1 ms: nanoseconds per add and
/// per expiry.
pub fn add_and_expire<C: Contender>(count: u64, last_ms: u64) -> (f64, f64) {
    let mut contender = C::new();
    let mut random = Random::new();
    let deadlines: Vec<_> = (0..count)
        .map(|_| contender.deadline(1 + random.below(last_ms)))
        .collect();
    let started = Instant::now();
    measured(|| {
        for (task, deadline) in (0..).zip(&deadlines) {
            contender.add(*deadline, task);
        }
    });
    let add = nanos_per(started, count);
    let started = Instant::now();
    let expired = contender.expire_all(last_ms);
    let expire = nanos_per(started, count);
    assert_eq!(
        expired,
        (count, count * (count - 1) / 2),
        "all have expired, each once"
    );
    (add, expire)
}

/// Adds a timer and cancels the oldest, or a random one, `pairs` times, with `outstanding` timers
/// that are 30 to 60 s away. Returns nanoseconds per pair.
pub fn churn<C: Contender>(outstanding: u64, pairs: u64, at_random: bool) -> f64 {
    let mut contender = C::new();
    let mut random = Random::new();
    let mut far = |contender: &C| contender.deadline(30_000 + random.below(30_000));
    let mut handles = Vec::with_capacity(outstanding as usize);
    for task in 0..outstanding {
        let deadline = far(&contender);
        handles.push(contender.add(deadline, task));
    }
    let deadlines: Vec<_> = (0..pairs).map(|_| far(&contender)).collect();
    let victims: Vec<usize> = (0..pairs)
        .map(|n| if at_random { random.below(outstanding) } else { n % outstanding } as usize)
        .collect();
    let started = Instant::now();
    let mut cancelled = 0;
    measured(|| {
        for (&deadline, &victim) in deadlines.iter().zip(&victims) {
            let handle = contender.add(deadline, 0);
            let oldest = std::mem::replace(&mut handles[victim], handle);
            cancelled += u64::from(contender.cancel(oldest));
        }
    });
    let pair = nanos_per(started, pairs);
    assert_eq!(cancelled, pairs, "every victim was pending");
    pair
}

/// Moves each of `outstanding` timers in turn to a later deadline, `moves` times. Returns
/// nanoseconds per move, or `None` if the contender cannot do that.
pub fn touch<C: Contender>(outstanding: u64, moves: u64) -> Option<f64> {
    let mut contender = C::new();
    let mut random = Random::new();
    let mut handles = Vec::with_capacity(outstanding as usize);
    for task in 0..outstanding {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        handles.push(contender.add(deadline, task));
    }
    let deadlines: Vec<_> = (0..moves)
        .map(|n| contender.deadline(60_000 + n * 30_000 / moves))
        .collect();
    let started = Instant::now();
    for (n, deadline) in deadlines.into_iter().enumerate() {
        contender.touch(&handles[n % outstanding as usize], deadline)?;
    }
    Some(nanos_per(started, moves))
}

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
