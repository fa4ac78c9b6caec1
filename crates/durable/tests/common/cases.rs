//! Steps that random ones seldom put together: what is kept, debounced, paused, and requeued twice.

use crate::stores::{Former, Moment, Step};

const PAST: Moment = Moment(true, 1);

/// Returns a moment far away.
fn far(n: u8) -> Moment {
    Moment(false, n)
}

/// Schedules keys, each with a tag by its number.
fn schedule(keys: &[u8], at: Moment, former: Former) -> Step {
    Step::Schedule(
        keys.iter()
            .map(|key| (Some(*key), at, true, former))
            .collect(),
    )
}

const ALL: Step = Step::Claim(20, false, 0);

pub(crate) fn cases() -> Vec<Step> {
    [steps(), deaths(), crashes()].concat()
}

fn steps() -> Vec<Step> {
    const REQUEUE: u8 = 2;
    const TOUCH: u8 = 4;
    let dead = |which| Step::Ack(vec![(which, 3, PAST)]);
    let debounce = |at, until| schedule(&[4], far(at), Former::Debounced(far(until)));
    vec![
        // Of four the first one's tag is paused: the others are claimed.
        schedule(&[0, 1, 2, 3], PAST, Former::Replaced),
        Step::Pause(Some(1), Some(far(1))),
        ALL,
        // What waits or runs is kept, and what ends with its run is not.
        schedule(&[0, 1], PAST, Former::Kept),
        Step::Cancel(vec![1]),
        schedule(&[1], PAST, Former::Kept),
        // Two dead ones have one key: the first one is brought back.
        dead(1),
        schedule(&[2], PAST, Former::Replaced),
        ALL,
        dead(5),
        Step::Bulk(None, REQUEUE, PAST),
        Step::Look,
        // What was brought back is due then, whatever it was tried before; so is a cancelled one.
        schedule(&[3], PAST, Former::Replaced),
        ALL,
        Step::Ack(vec![(6, 1, PAST)]),
        ALL,
        Step::Cancel(vec![3]),
        dead(8),
        Step::Bulk(None, REQUEUE, PAST),
        ALL,
        // What was held back says when it was due.
        Step::Pause(Some(1), None),
        ALL,
        // Those that follow are due with the second one's wait.
        debounce(7, 7),
        debounce(1, 2),
        debounce(5, 6),
        debounce(5, 6),
        Step::Touch(vec![(4, far(0))]),
        Step::Look,
        // A pause is shortened, and what it holds is moved.
        Step::Pause(None, Some(far(2))),
        schedule(&[5], PAST, Former::Replaced),
        ALL,
        Step::Pause(None, Some(far(1))),
        Step::Look,
        Step::Bulk(None, TOUCH, Moment(true, 3)),
        Step::Pause(None, None),
        ALL,
        // Of two pauses one ends: what both hold goes with the other one.
        schedule(&[0, 1, 2, 3], PAST, Former::Replaced),
        Step::Pause(Some(1), Some(far(5))),
        Step::Pause(None, Some(far(3))),
        ALL,
        Step::Pause(Some(1), None),
        Step::Look,
        Step::Pause(Some(2), Some(far(2))),
        Step::Pause(None, None),
        Step::Look,
        ALL,
    ]
}

fn deaths() -> Vec<Step> {
    let die = Step::Ack((0..100).map(|which| (which, 3, PAST)).collect());
    vec![
        // Many die at once, others at another time, and are listed.
        schedule(&[0, 1, 2, 3], PAST, Former::Replaced),
        ALL,
        die.clone(),
        schedule(&[3, 4, 5], PAST, Former::Replaced),
        ALL,
        die,
        schedule(&[3], PAST, Former::Replaced),
        Step::Look,
    ]
}

fn crashes() -> Vec<Step> {
    vec![
        // What was in a crash, or whose claim's answer was lost, is nobody's while it is held.
        Step::NewOwner,
        ALL,
        Step::Claim(20, false, 1),
        Step::NewOwner,
        Step::Claim(3, false, 2),
        Step::Pause(None, Some(far(4))),
        ALL,
        Step::Look,
        Step::Cancel(vec![0, 1]),
        Step::Pause(None, None),
        Step::Claim(20, false, 3),
        Step::Look,
    ]
}
