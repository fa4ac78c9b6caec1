//! Schedule-exploring models of nodes on one store: `.ci/models` runs them.
//!
//! ```text
//! RUSTFLAGS="--cfg tickwheel_model" CARGO_TARGET_DIR=target/model \
//!     cargo test --release -p tickwheel-durable --lib models -- --nocapture
//! ```
//!
//! The store is the one in memory, each of whose calls is one step: shuttle chooses what happens
//! before a call arrives and before its answer does. The nodes are made of the code that is
//! shipped: claimer, runner, acker, slots, window and loader. Each says what bug it was seen to
//! catch ("Fails when ...").

#[path = "../../../../tests/models/harness.rs"]
#[allow(dead_code, reason = "none of these models is a pair of calls")]
mod harness;
mod world;

use crate::entry::{Cancelled, Due, Outcome, Touched, When};
use crate::models::harness::explore;
use crate::models::world::{Actor, Event, LEASE, WINDOW, World};
use crate::node::loader::Loader;
use crate::store::{Place, Store};
use shuttle::future::{block_on, spawn, yield_now};
use std::sync::Arc;
use std::time::Duration;

fn done(_: &Due) -> Outcome {
    Outcome::Done
}

/// Fails the first time.
fn fails_first(due: &Due) -> Outcome {
    match due.attempt {
        1 => Outcome::RetryAt(When::After(Duration::from_millis(50)), String::new()),
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
            let was_running = answer == Cancelled::Running;
            // Again and again: also between what is late and what it is late for.
            for _ in 0..30 {
                if answer == Cancelled::Running {
                    yield_now().await;
                    answer = shared.cancel().await;
                }
            }
            (answer, was_running)
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
        let ((answer, was_running), second) = (answer.expect("it ends"), second.expect("it ends"));
        first.rest().await;
        first.end().await;
        second.settle(&world).await;
        world.check_cancel();
        let begun = world.begun();
        match answer {
            Cancelled::Cancelled(_) => {}
            // In the hands of a node that had lost its lease, it may not have begun.
            _ => assert!(begun > 0 || was_running, "lost"),
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
    explore("durable_cancel_against_a_late_retry", 4, || {
        takeover(fails_first)
    });
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
                touched
                    .expect("no fault is injected")
                    .remove(0)
                    .expect("it is not locked")
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

/// A node that leaves politely lets nothing run twice. Fails when a slot is released while a claim
/// in it is in flight; when a node claims in a slot that it leaves.
#[test]
fn handover_against_claim() {
    explore("durable_handover_against_claim", 2, || {
        block_on(async {
            let world = Arc::new(World::new());
            let first = Arc::new(Actor::join(&world, 1, done).await);
            let second = Actor::join(&world, 2, done).await;
            let place = world.schedule(1, world.store.now()).await;
            let leaver = Arc::clone(&first);
            let leaving = spawn(async move {
                while !leaver.round(true).await {
                    yield_now().await;
                }
            });
            let taking = spawn(async move {
                while second.node.slots.len() == 0 {
                    yield_now().await;
                    second.round(false).await;
                }
                second.fire(second.load().await).await;
                second
            });
            first.fire(vec![place]).await;
            leaving.await.expect("it ends");
            let second = taking.await.expect("it ends");
            Arc::into_inner(first)
                .expect("nobody else has it")
                .end()
                .await;
            second.settle(&world).await;
            assert_eq!(world.begun(), 1, "{:?}", world.events());
            format!("{:?}", world.events())
        })
    });
}

/// What two tell of, a node claims once. Fails when what is in a handler's hands is filed and
/// taken again.
#[test]
fn two_tell_of_one_timer() {
    explore("durable_two_tell_of_one_timer", 2, || {
        block_on(async {
            let world = Arc::new(World::new());
            let node = Arc::new(Actor::join(&world, 1, done).await);
            node.node
                .window
                .set_horizon(world.store.now().plus(Duration::from_secs(60)));
            let place = world.schedule(1, world.store.now()).await;
            let tell = |node: Arc<Actor>| async move {
                node.node.note(place);
                node.node.timer.advance_clock(Duration::ZERO);
                let places = node.node.window.take(10);
                let taken = places.len();
                node.fire(places).await;
                taken
            };
            let other = spawn(tell(Arc::clone(&node)));
            let one = tell(Arc::clone(&node)).await;
            let other = other.await.expect("it ends");
            node.rest().await;
            Arc::into_inner(node)
                .expect("nobody else has it")
                .settle(&world)
                .await;
            assert_eq!(world.begun(), 1, "{:?}", world.events());
            format!("{one} {other}")
        })
    });
}

/// What is written while the window moves is loaded or hinted at. Fails when a window is loaded
/// before its horizon is published.
#[test]
fn schedule_against_the_window() {
    explore("durable_schedule_against_the_window", 2, || {
        block_on(async {
            let world = Arc::new(World::new());
            let node = Actor::join(&world, 1, done).await;
            let mut loader = Loader::new(Arc::clone(&node.node));
            for _ in 0..4 {
                loader.round(node.id).await.expect("no fault is injected");
            }
            let next = node.node.window.horizon().plus(WINDOW / 4);
            world.clock.advance(WINDOW / 2);
            let shared = Arc::clone(&world);
            let writing = spawn(async move { shared.schedule(1, next).await });
            loader.round(node.id).await.expect("no fault is injected");
            world.clock.advance(WINDOW / 4); // It loads a while after it has published.
            loader.round(node.id).await.expect("no fault is injected");
            let loaded = node.node.window.near();
            let place: Place = writing.await.expect("it ends");
            for _ in 0..2 {
                loader.round(node.id).await.expect("no fault is injected");
            }
            assert!(
                node.node.window.is_known(&place),
                "neither loaded nor hinted at"
            );
            node.end().await;
            format!("{loaded}")
        })
    });
}
