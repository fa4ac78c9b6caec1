//! Random steps on sleeps and on a naive model of them. After every step all that can be seen is
//! compared: who is ready, who was woken, what the timer holds.

use crate::wakes::Wakes;
use crate::{Fixture, MS};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tickwheel::future::Sleep;

/// Sleeps at once, and wakers that poll them.
const SLEEPS: usize = 4;
const WAKERS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Begin(usize, u32),
    Poll(usize, usize),
    Reset(usize, u32),
    Drop(usize),
    Advance(u32),
}

impl Arbitrary for Step {
    fn arbitrary(random: &mut Gen) -> Self {
        let sleep = usize::arbitrary(random) % SLEEPS;
        let ms = u32::arbitrary(random) % 9;
        match u32::arbitrary(random) % 12 {
            0..2 => Step::Begin(sleep, ms),
            2..6 => Step::Poll(sleep, usize::arbitrary(random) % WAKERS),
            6..8 => Step::Reset(sleep, ms),
            8 => Step::Drop(sleep),
            _ => Step::Advance(ms / 2),
        }
    }
}

/// A sleep of the model: when it is ready, in milliseconds, and whom the timer will wake.
#[derive(Clone, Copy)]
struct Naive {
    deadline: u32,
    wakes: Option<usize>,
}

#[derive(Default)]
struct Model {
    now: u32,
    sleeps: [Option<Naive>; SLEEPS],
    woken: [usize; WAKERS],
}

impl Model {
    /// Lets time pass: each sleep that is due is woken, once.
    fn advance(&mut self, ms: u32) {
        self.now += ms;
        for sleep in self
            .sleeps
            .iter_mut()
            .flatten()
            .filter(|it| it.deadline <= self.now)
        {
            if let Some(waker) = sleep.wakes.take() {
                self.woken[waker] += 1;
            }
        }
    }

    /// Returns whether the sleep is ready; otherwise the waker is woken in time.
    fn poll(sleep: &mut Naive, now: u32, waker: usize) -> bool {
        let is_ready = sleep.deadline <= now;
        sleep.wakes = (!is_ready).then_some(waker);
        is_ready
    }
}

fn run(
    fixture: &Fixture,
    wakers: &[Waker],
    sleeps: &mut [Option<Pin<Box<Sleep>>>],
    model: &mut Model,
    step: &Step,
) {
    match *step {
        Step::Begin(id, ms) => {
            sleeps[id] = Some(Box::pin(fixture.timer.sleep(ms * MS)));
            model.sleeps[id] = Some(Naive {
                deadline: model.now + ms,
                wakes: None,
            });
        }
        Step::Poll(id, waker) => {
            if let (Some(sleep), Some(naive)) = (&mut sleeps[id], &mut model.sleeps[id]) {
                let mut context = Context::from_waker(&wakers[waker]);
                let mut is_ready = sleep.as_mut().poll(&mut context).is_ready();
                let expected = Model::poll(naive, model.now, waker);
                if expected && !is_ready {
                    // Every 64th lets others run first.
                    model.woken[waker] += 1;
                    is_ready = sleep.as_mut().poll(&mut context).is_ready();
                }
                assert_eq!(is_ready, expected);
            }
        }
        Step::Reset(id, ms) => {
            if let (Some(sleep), Some(naive)) = (&mut sleeps[id], &mut model.sleeps[id]) {
                sleep.reset(ms * MS);
                naive.deadline = model.now + ms;
            }
        }
        Step::Drop(id) => (sleeps[id], model.sleeps[id]) = (None, None),
        Step::Advance(ms) => {
            fixture.clock.advance(ms * MS);
            fixture.timer.advance_clock(Duration::ZERO);
            model.advance(ms);
        }
    }
}

#[test]
fn sleeps_do_what_the_model_says_after_every_step() {
    fn agrees(steps: Vec<Step>) {
        let fixture = Fixture::new();
        let mut model = Model::default();
        let counts: [Arc<Wakes>; WAKERS] = Default::default();
        let wakers = counts.clone().map(Waker::from);
        let mut sleeps: [Option<Pin<Box<Sleep>>>; SLEEPS] = Default::default();
        for step in &steps {
            run(&fixture, &wakers, &mut sleeps, &mut model, step);
            fixture.timer.assert_invariants();
            let woken = counts.each_ref().map(|count| count.take());
            assert_eq!(woken, std::mem::take(&mut model.woken), "who was woken");
            let waits = model
                .sleeps
                .iter()
                .flatten()
                .filter(|sleep| sleep.wakes.is_some());
            assert_eq!(fixture.timer.len(), waits.count(), "what the timer holds");
            for (sleep, naive) in sleeps.iter().zip(&model.sleeps) {
                let is_elapsed = sleep.as_ref().map(|sleep| sleep.is_elapsed());
                assert_eq!(is_elapsed, naive.map(|naive| naive.deadline <= model.now));
            }
        }
    }
    QuickCheck::new()
        .tests(500)
        .quickcheck(agrees as fn(Vec<Step>));
}
