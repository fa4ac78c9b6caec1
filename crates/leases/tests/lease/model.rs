//! Random holders and a random store, against what must hold of every lease.

use crate::{Fixture, Mood};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use tickwheel::TimerBuilder;
use tickwheel_leases::{Lease, Renewal, Stats};

#[derive(Clone, Debug)]
enum Step {
    Hold(u32),
    Release(u32),
    Mood(Mood),
    /// The store answers what it has kept.
    Answer(Mood),
    Pass(u32),
}

impl Arbitrary for Step {
    fn arbitrary(random: &mut Gen) -> Self {
        let key = u32::arbitrary(random) % 4;
        let moods = [
            Mood::Renews,
            Mood::Fails,
            Mood::Panics,
            Mood::Stalls,
            Mood::SaysGone,
        ];
        let mood = *random.choose(&moods).expect("not empty");
        match u32::arbitrary(random) % 10 {
            0..2 => Step::Hold(key),
            2 => Step::Release(key),
            3..5 => Step::Mood(mood),
            5 => Step::Answer(mood),
            _ => Step::Pass(1 + u32::arbitrary(random) % 12),
        }
    }
}

/// What is known of a key's lease.
struct Expected {
    lease: Lease<u32>,
    /// When the store renewed it last, or it was taken.
    renewed: u64,
    /// By when it is to be renewed: a third of it after it was, or a quarter of that after it
    /// failed. It may be a second earlier, to go along with others.
    due: u64,
    /// When a renewal was sent that has had no answer.
    in_flight: Option<u64>,
    /// Whether the store has said so: the next turn reports it lost.
    is_gone: bool,
}

struct Run {
    fixture: Fixture,
    mood: Mood,
    now: u64,
    held: [Option<Expected>; 4],
    stats: Stats,
}

impl Run {
    /// Lets a second pass, and looks at everything that came of it.
    fn second(&mut self) {
        self.now += 1;
        self.fixture.pass(1);
        let mut gone = Vec::new();
        for (at, key) in self.fixture.take_renewals() {
            let expected = self.held[key as usize]
                .as_mut()
                .expect("only what is held is renewed");
            assert_eq!(at, self.now);
            assert!(at < expected.renewed + 30, "{key} had run out");
            assert!(expected.in_flight.is_none(), "{key} is sent twice");
            assert!(at + 1 >= expected.due, "{key} is sent too early");
            match self.mood {
                Mood::Renews => {
                    expected.renewed = at;
                    expected.due = at + 10;
                    self.stats.renewed += 1;
                }
                Mood::Stalls => expected.in_flight = Some(at),
                Mood::Fails | Mood::Panics => {
                    expected.due = (at + 3).min(expected.renewed + 30);
                    self.stats.failed += 1;
                }
                Mood::SaysGone => gone.push(key),
            }
        }
        let lost = self.fixture.take_lost();
        for (key, held) in self.held.iter_mut().enumerate() {
            let times = lost
                .iter()
                .filter(|(_, lost)| *lost as usize == key)
                .count();
            let Some(expected) = held else {
                assert_eq!(times, 0, "{key} is not held");
                continue;
            };
            let is_gone = expected.is_gone || gone.contains(&(key as u32));
            let is_over = self.now >= expected.renewed + 30 || is_gone;
            assert_eq!(times, usize::from(is_over), "how often {key} is lost");
            if is_over {
                assert!(!expected.lease.is_held());
                *held = None;
                self.stats.lost += 1;
            } else {
                let is_late = expected.in_flight.is_none() && self.now > expected.due;
                assert!(!is_late && expected.lease.is_held(), "{key} is not renewed");
            }
        }
    }

    fn answer(&mut self, mood: Mood) {
        let stalled = std::mem::take(&mut self.fixture.seen.lock().unwrap().stalled);
        for renewal in stalled {
            let key = *renewal.key() as usize;
            let was_held = self.held[key].as_ref().is_some_and(|it| it.lease.is_held());
            match mood {
                Mood::Renews => renewal.renewed(),
                Mood::SaysGone => renewal.gone(),
                _ => Renewal::failed(renewal),
            }
            assert_eq!(self.fixture.take_lost(), [], "the next turn reports it");
            let Some(expected) = &mut self.held[key] else {
                continue;
            };
            // One of a former generation has no effect.
            let Some(sent) = expected.in_flight else {
                assert_eq!(expected.lease.is_held(), was_held);
                continue;
            };
            expected.in_flight = None;
            match mood {
                Mood::Renews => {
                    expected.renewed = sent;
                    expected.due = self.now.max(sent + 10);
                    self.stats.renewed += 1;
                }
                Mood::SaysGone => {
                    expected.is_gone = true;
                    assert!(!expected.lease.is_held());
                }
                _ => {
                    expected.due = (self.now + 3).min(expected.renewed + 30);
                    self.stats.failed += 1;
                }
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Hold(key) => {
                // An answer to the former generation could not be told apart by this model.
                self.answer(Mood::Fails);
                let lease = self.fixture.leases.hold(key).expect("there is room");
                self.stats.taken += 1;
                let renewed = self.now;
                let due = self.now + 10;
                let expected = Expected {
                    lease,
                    renewed,
                    due,
                    in_flight: None,
                    is_gone: false,
                };
                if let Some(former) = self.held[key as usize].replace(expected) {
                    assert!(!former.lease.is_held());
                    self.stats.released += 1;
                }
            }
            Step::Release(key) => {
                if let Some(expected) = self.held[key as usize].take() {
                    assert!(expected.lease.release() != expected.is_gone);
                    self.stats.released += 1;
                }
            }
            Step::Mood(mood) => {
                self.mood = mood;
                self.fixture.set(mood);
            }
            Step::Answer(mood) => self.answer(mood),
            Step::Pass(seconds) => (0..seconds).for_each(|_| self.second()),
        }
        self.stats.held = self.held.iter().flatten().count();
        assert_eq!(self.fixture.leases.len(), self.stats.held);
        assert_eq!(self.fixture.leases.stats(), self.stats);
    }
}

#[test]
fn every_lease_is_renewed_in_time_or_lost_once() {
    fn holds(steps: Vec<Step>) {
        let fixture = Fixture::with(TimerBuilder::build, |terms| terms.batch_size(2));
        let held = [const { None }; 4];
        let stats = Stats::default();
        let mut run = Run {
            fixture,
            mood: Mood::Renews,
            now: 0,
            held,
            stats,
        };
        steps.iter().for_each(|step| run.step(step));
        (0..60).for_each(|_| run.second());
        run.held = Default::default();
        run.fixture.pass(30);
        assert!(run.fixture.timer.is_empty(), "nothing is planned any more");
    }
    QuickCheck::new()
        .tests(400)
        .quickcheck(holds as fn(Vec<Step>));
}
