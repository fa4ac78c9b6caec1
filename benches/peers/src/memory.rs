//! W6: bytes per outstanding timer, exactly, as the allocator counts them.

use crate::contender::Contender;
use crate::contenders::Tickwheel;
use crate::work::Random;

/// Bytes that are allocated now.
#[allow(unsafe_code)]
fn allocated() -> f64 {
    // SAFETY: reads glibc's counters; takes and changes nothing.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as f64
}

/// Adds `count` timers over 60 s: bytes per timer, the empty structure included.
pub fn per_timer<C: Contender>(count: u64) -> f64 {
    let mut random = Random::new();
    let before = allocated();
    let mut contender = C::new();
    for task in 0..count {
        let deadline = contender.deadline(1 + random.below(60_000));
        contender.add(deadline, task);
    }
    (allocated() - before) / count as f64
}

/// With 1 k timers alive, adds and cancels `pairs` more: the memory as a multiple of what it was.
pub fn after_churn(pairs: u64) -> f64 {
    const ALIVE: usize = 1_000;
    let mut random = Random::new();
    let mut handles = Vec::with_capacity(ALIVE);
    let before = allocated();
    let mut contender = Tickwheel::new();
    for task in 0..ALIVE as u64 {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        handles.push(contender.add(deadline, task));
    }
    let live = allocated() - before;
    for n in 0..pairs {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        let handle = contender.add(deadline, n);
        let victim = random.below(ALIVE as u64) as usize;
        assert!(contender.cancel(std::mem::replace(&mut handles[victim], handle)));
    }
    (allocated() - before) / live
}

/// With 10 k timers alive, adds a burst of `count` and cancels it: the memory as a multiple of what
/// it was.
pub fn after_burst(count: u64) -> f64 {
    let mut random = Random::new();
    let mut burst = Vec::with_capacity(count as usize);
    let before = allocated();
    let mut contender = Tickwheel::new();
    let mut kept = Vec::with_capacity(10_000);
    for task in 0..10_000 {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        kept.push(contender.add(deadline, task));
    }
    let start = allocated() - before;
    for task in 0..count {
        let deadline = contender.deadline(30_000 + random.below(30_000));
        burst.push(contender.add(deadline, task));
    }
    burst.drain(..).for_each(|handle| assert!(contender.cancel(handle)));
    (allocated() - before) / start
}
