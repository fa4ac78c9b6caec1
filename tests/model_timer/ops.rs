//! What is done to a timer.

use super::times::{How, Span};
use quickcheck::{Arbitrary, Gen};

/// Timers are chosen by their number, modulo of how many there were, gone ones included.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// The last says whether another thread does it.
    Add(Span, How, bool),
    Cancel(usize),
    Reschedule(usize, Span, How),
    Touch(usize, Span, How),
    /// `cancel_on_drop`, and `disarm` if true.
    Guard(usize, bool),
    /// Moves the clock, and does not look at what that made due.
    Step(Span),
    Advance,
    StepAndAdvance(Span),
    /// The same, to where `next_expiration` says.
    Follow,
}

impl Arbitrary for Op {
    fn arbitrary(g: &mut Gen) -> Self {
        let nth = usize::arbitrary(g) % 80;
        let span = Span::arbitrary(g);
        let how = How::arbitrary(g);
        match u8::arbitrary(g) % 32 {
            0..=10 => Op::Add(span, how, false),
            11 => Op::Add(span, how, true),
            12..=14 => Op::Cancel(nth),
            15..=17 => Op::Reschedule(nth, span, how),
            18..=20 => Op::Touch(nth, span, how),
            21 => Op::Guard(nth, bool::arbitrary(g)),
            22..=25 => Op::Step(span),
            26 => Op::Advance,
            27 => Op::Follow,
            _ => Op::StepAndAdvance(span),
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match *self {
            Op::Add(span, how, true) => quickcheck::single_shrinker(Op::Add(span, how, false)),
            Op::Add(span, how, false) => {
                Box::new(span.shrink().map(move |span| Op::Add(span, how, false)))
            }
            Op::Reschedule(nth, span, how) => Box::new(
                span.shrink()
                    .map(move |span| Op::Reschedule(nth, span, how)),
            ),
            Op::Touch(nth, span, how) => {
                Box::new(span.shrink().map(move |span| Op::Touch(nth, span, how)))
            }
            Op::Step(span) => Box::new(span.shrink().map(Op::Step)),
            Op::StepAndAdvance(span) => Box::new(span.shrink().map(Op::StepAndAdvance)),
            _ => quickcheck::empty_shrinker(),
        }
    }
}
