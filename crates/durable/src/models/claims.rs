//! Models of one timer: claims, cancels, takeovers and late acknowledgements.

use crate::answer::{Cancelled, Touched};
use crate::due::{Due, Outcome};
use crate::entry::When;
use crate::models::harness::explore;
use crate::models::world::{Actor, Event, LEASE, World};
use crate::store::Store;
use shuttle::future::{block_on, spawn, yield_now};
use std::sync::Arc;
use std::time::Duration;

fn done(_: &Due) -> Outcome {
    Outcome::Done
}

/// Fails the first time.
fn fails_first(due: &Due) -> Outcome {
    match due.attempt {
        1 => Outcome::RetryAt(When::After(Duration::from_millis(50))),
        _ => Outcome::Done,
    }
}

/// Lets node 1 claim a timer and fall silent; its lease ends, and node 2 takes over; meanwhile a
/// third thread cancels.
fn takeover(answer: fn(&Due) -> Outcome) -> String {
    block_on(async move {
        let world = Arc::new(World::new());
        let first = Actor::join(&world, 1, answer).await;
        let place = world.schedule(1, world.store.now()).await;
        let shared = Arc::clone(&world);
        let cancelling = spawn(async move {
            let mut answer = shared.cancel().await;
            // Again and again: also between what is late and what it is late for.
            for _ in 0..30 {
                if answer == Cancelled::Running {
                    yield_now().await;
                    answer = shared.cancel().await;
                }
            }
            answer
        });
        let shared = Arc::clone(&world);
        let taking_over = spawn(async move {
            shared.clock.advance(LEASE);
            let second = Actor::join(&shared, 2, answer).await;
            second.fire(second.load().await).await;
            second
        });
        first.fire(vec![place]).await;
        let (answer, second) = (cancelling.await, taking_over.await);
        let (answer, second) = (answer.expect("it ends"), second.expect("it ends"));
        first.rest().await;
        first.end().await;
        second.settle(&world).await;
        world.check_cancel();
        let begun = world.begun();
        match answer {
            Cancelled::Cancelled(_) => {}
            _ => assert!(begun > 0, "lost"),
        }
        format!("{answer:?} {begun}")
    })
}

/// Fails when a cancel takes a claimed row.
#[test]
fn cancel_against_takeover() {
    explore("durable_cancel_against_takeover", 3, || takeover(done));
}

/// Fails when an acknowledgement is not fenced by its epoch; when a slot that is taken keeps its
/// epoch.
#[test]
fn cancel_against_a_late_retry() {
    explore("durable_cancel_against_a_late_retry", 4, || takeover(fails_first));
}

/// Fails when an acknowledgement goes by the key.
#[test]
fn replace_against_a_late_acknowledgement() {
    explore("durable_replace_against_a_late_acknowledgement", 2, || {
        block_on(async {
            let world = Arc::new(World::new());
            let node = Actor::join(&world, 1, done).await;
            let place = world.schedule(1, world.store.now()).await;
            let shared = Arc::clone(&world);
            let replacing = spawn(async move { shared.schedule(2, shared.store.now()).await });
            node.fire(vec![place]).await;
            replacing.await.expect("it ends");
            node.settle(&world).await;
            let events = world.events();
            let payloads = events.iter().filter_map(|event| match event {
                Event::Begun { payload, .. } => Some(payload.as_slice()),
                _ => None,
            });
            let begun = |id: u8| payloads.clone().filter(|payload| *payload == [id]).count();
            assert_eq!(begun(2), 1, "{:?}", world.events());
            format!("{} {:?}", begun(1), world.events().len())
        })
    });
}

/// Fails when a touch moves a claimed row.
#[test]
fn touch_against_claim() {
    explore("durable_touch_against_claim", 2, || {
        block_on(async {
            let world = Arc::new(World::new());
            let node = Actor::join(&world, 1, done).await;
            let place = world.schedule(1, world.store.now()).await;
            let shared = Arc::clone(&world);
            let touching = spawn(async move {
                let later = shared.store.now().plus(Duration::from_millis(150));
                let touched = shared.store.touch(vec![(World::name(), later)]).await;
                touched.expect("no fault is injected").remove(0).expect("it is not locked")
            });
            node.fire(vec![place]).await;
            let touched = touching.await.expect("it ends");
            node.rest().await;
            assert_eq!(world.begun(), usize::from(touched != Touched::Moved));
            node.settle(&world).await;
            assert_eq!(world.begun(), 1, "{:?}", world.events());
            format!("{touched:?}")
        })
    });
}
