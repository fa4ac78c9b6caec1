//! What the model test does to keyed timers.

use crate::times::{How, Span};
use quickcheck::{Arbitrary, Gen};

pub(crate) const KEYS: u32 = 5;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Schedule(u32, Span, How),
    ScheduleIfAbsent(u32, Span, How),
    Cancel(u32),
    Touch(u32, Span, How),
    Reschedule(u32, Span, How),
    /// Moves the clock, and does not look at what that made due.
    Move(Span),
    Advance,
    /// To where `next_expiration` says.
    Follow,
    CancelAll,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let key = u32::arbitrary(g) % KEYS;
        let (span, how) = (Span::arbitrary(g), How::arbitrary(g));
        match u8::arbitrary(g) % 32 {
            0..=7 => Step::Schedule(key, span, how),
            8..=10 => Step::ScheduleIfAbsent(key, span, how),
            11..=13 => Step::Cancel(key),
            14..=17 => Step::Touch(key, span, how),
            18..=21 => Step::Reschedule(key, span, how),
            22..=25 => Step::Move(span),
            26..=28 => Step::Advance,
            29..=30 => Step::Follow,
            _ => Step::CancelAll,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match *self {
            Step::Schedule(key, span, how) => {
                Box::new(span.shrink().map(move |span| Step::Schedule(key, span, how)))
            }
            Step::Touch(key, span, how) => {
                Box::new(span.shrink().map(move |span| Step::Touch(key, span, how)))
            }
            Step::Reschedule(key, span, how) => {
                Box::new(span.shrink().map(move |span| Step::Reschedule(key, span, how)))
            }
            Step::Move(span) => Box::new(span.shrink().map(Step::Move)),
            _ => quickcheck::empty_shrinker(),
        }
    }
}
