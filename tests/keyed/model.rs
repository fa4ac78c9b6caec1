//! Random steps on keyed timers and on a naive model, an ordered map. After every step all that
//! can be seen is compared.

use crate::{Fixture, MS};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::collections::BTreeMap;
use std::time::Duration;
use tickwheel::TimerEntry;

#[derive(Clone, Debug)]
enum Step {
    Schedule(u32, u32),
    ScheduleIfAbsent(u32, u32),
    Cancel(u32),
    Touch(u32, u32),
    Reschedule(u32, u32),
    Advance(u32),
    CancelAll,
}

impl Arbitrary for Step {
    fn arbitrary(random: &mut Gen) -> Self {
        let key = u32::arbitrary(random) % 5;
        let ms = u32::arbitrary(random) % 12;
        match u32::arbitrary(random) % 16 {
            0..4 => Step::Schedule(key, ms),
            4..6 => Step::ScheduleIfAbsent(key, ms),
            6..8 => Step::Cancel(key),
            8..10 => Step::Touch(key, ms),
            10..12 => Step::Reschedule(key, ms),
            12..15 => Step::Advance(ms / 2),
            _ => Step::CancelAll,
        }
    }
}

/// By key: the deadline in milliseconds and the task.
type Model = BTreeMap<u32, (u32, u32)>;

fn run(fixture: &Fixture, model: &mut Model, now: &mut u32, task: u32, step: &Step) {
    let keyed = &fixture.keyed;
    match *step {
        Step::Schedule(key, ms) => {
            let replaced = model.insert(key, (*now + ms, task)).map(|(_, task)| task);
            assert_eq!(fixture.schedule(key, ms * MS, task), replaced);
        }
        Step::ScheduleIfAbsent(key, ms) => {
            let entry = TimerEntry::after(ms * MS, task);
            let refused = keyed.schedule_if_absent(key, entry).expect("there is room");
            assert_eq!(refused.is_some(), model.contains_key(&key));
            model.entry(key).or_insert((*now + ms, task));
        }
        Step::Cancel(key) => {
            assert_eq!(keyed.cancel(&key), model.remove(&key).map(|(_, task)| task));
        }
        Step::Touch(key, ms) => {
            assert_eq!(keyed.touch(&key, ms * MS), model.contains_key(&key));
            model.entry(key).and_modify(|(deadline, _)| *deadline = (*deadline).max(*now + ms));
        }
        Step::Reschedule(key, ms) => {
            assert_eq!(keyed.reschedule(&key, ms * MS), model.contains_key(&key));
            model.entry(key).and_modify(|(deadline, _)| *deadline = *now + ms);
        }
        Step::Advance(ms) => {
            *now += ms;
            let mut expired = fixture.advance(ms * MS);
            expired.sort_unstable();
            assert_eq!(expired, expire(model, *now));
        }
        Step::CancelAll => {
            let mut all = keyed.cancel_all();
            all.sort_unstable();
            let expected: Vec<_> = model.iter().map(|(key, (_, task))| (*key, *task)).collect();
            assert_eq!(all, expected);
            model.clear();
        }
    }
}

/// Takes out what is due, by key.
fn expire(model: &mut Model, now: u32) -> Vec<(u32, u32)> {
    let due = model.iter().filter(|(_, (deadline, _))| *deadline <= now);
    let due = due.map(|(key, (_, task))| (*key, *task)).collect();
    model.retain(|_, (deadline, _)| *deadline > now);
    due
}

#[test]
fn keyed_timers_do_what_the_model_says_after_every_step() {
    fn agrees(steps: Vec<Step>) {
        let (fixture, mut model, mut now) = (Fixture::new(), Model::new(), 0);
        let start = fixture.clock.now();
        for (task, step) in steps.iter().enumerate() {
            run(&fixture, &mut model, &mut now, task as u32, step);
            assert_eq!((fixture.keyed.len(), fixture.timer.len()), (model.len(), model.len()));
            for key in 0..5 {
                let deadline = model.get(&key).map(|(ms, _)| start + *ms * MS);
                assert_eq!(fixture.keyed.deadline(&key), deadline, "of {key}");
                assert_eq!(fixture.keyed.contains(&key), model.contains_key(&key));
            }
            let mut all = Vec::new();
            fixture.keyed.for_each(|key, task, at| all.push((*key, (at, *task))));
            all.sort_unstable();
            let wanted =
                model.iter().map(|(key, (ms, task))| (*key, (Some(start + *ms * MS), *task)));
            assert_eq!(all, wanted.collect::<Vec<_>>());
        }
        fixture.keyed.cancel_all();
        assert_eq!(fixture.advance(Duration::from_secs(1)), []);
    }
    QuickCheck::new().tests(500).quickcheck(agrees as fn(Vec<Step>));
}
