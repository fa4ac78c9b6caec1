//! What the model test does to a purgatory.

use quickcheck::{Arbitrary, Gen};

pub(crate) const KEYS: u32 = 6;

/// What an operation's `on_complete` does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    Nothing,
    Trigger(u32),
    TriggerUpTo(u32, usize),
    CancelForKey(u32),
    /// Makes the condition of the nth operation true, then triggers a key.
    Enable(usize, u32),
}

/// Operations are chosen by their number, modulo of how many there were, ended ones included. Times
/// are in half milliseconds, so that some lie between two ticks.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Add { keys: Vec<u32>, timeout: u64, holds: bool, then: Then },
    Set(usize, bool),
    Trigger(u32),
    TriggerAll(Vec<u32>),
    TriggerUpTo(u32, usize),
    Force(usize),
    Cancel(usize),
    CancelForKey(u32),
    Advance(u64),
    DropHandle(usize),
}

/// Returns mostly the same key, so that it has more operations than there are in a block.
fn key(g: &mut Gen) -> u32 {
    (u32::arbitrary(g) % (2 * KEYS)).saturating_sub(KEYS)
}

fn limit(g: &mut Gen) -> usize {
    match u8::arbitrary(g) % 8 {
        0 => 0,
        1 => usize::MAX,
        2..=4 => 1,
        _ => usize::arbitrary(g) % 10,
    }
}

fn keys(g: &mut Gen) -> Vec<u32> {
    (0..1 + u8::arbitrary(g) % 4).map(|_| key(g)).collect()
}

impl Arbitrary for Then {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 8 {
            0..=1 => Then::Trigger(key(g)),
            2 => Then::TriggerUpTo(key(g), limit(g)),
            3 => Then::CancelForKey(key(g)),
            4 => Then::Enable(usize::arbitrary(g) % 100, key(g)),
            _ => Then::Nothing,
        }
    }
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        // Mostly a recent operation: the old ones have ended.
        let nth = usize::arbitrary(g) % 20;
        match u8::arbitrary(g) % 32 {
            0..=12 => {
                let holds = u8::arbitrary(g) % 8 == 0;
                let timeout = u64::arbitrary(g) % 41;
                Step::Add { keys: keys(g), timeout, holds, then: Then::arbitrary(g) }
            }
            13..=17 => Step::Set(nth, u8::arbitrary(g) % 4 > 0),
            18 => Step::Trigger(key(g)),
            19..=21 => Step::TriggerUpTo(key(g), limit(g)),
            22 => Step::TriggerAll(keys(g)),
            23 => Step::Force(nth),
            24..=25 => Step::Cancel(nth),
            26 => Step::CancelForKey(key(g)),
            27..=29 => Step::Advance(u64::arbitrary(g) % 11),
            _ => Step::DropHandle(nth),
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let Step::Add { keys, timeout, holds, then } = self.clone() else {
            return quickcheck::empty_shrinker();
        };
        let mut simpler = Vec::new();
        if then != Then::Nothing {
            simpler.push(Step::Add { keys: keys.clone(), timeout, holds, then: Then::Nothing });
        }
        if keys.len() > 1 {
            simpler.push(Step::Add { keys: keys[1..].to_vec(), timeout, holds, then });
        }
        Box::new(simpler.into_iter())
    }
}
