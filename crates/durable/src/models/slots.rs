//! Models of slots that change hands, and of what a node has in its own.

use crate::due::{Due, Outcome};
use crate::models::harness::explore;
use crate::models::world::{Actor, WINDOW, World};
use crate::node::loader::Loader;
use crate::store::Place;
use shuttle::future::{block_on, spawn, yield_now};
use std::sync::Arc;
use std::time::Duration;

fn done(_: &Due) -> Outcome {
    Outcome::Done
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
            Arc::into_inner(first).expect("nobody else has it").end().await;
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
            node.node.window.set_horizon(world.store.now().plus(Duration::from_secs(60)));
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
            Arc::into_inner(node).expect("nobody else has it").settle(&world).await;
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
            let loaded = node.node.window.near();
            let place: Place = writing.await.expect("it ends");
            for _ in 0..2 {
                loader.round(node.id).await.expect("no fault is injected");
            }
            assert!(node.node.window.is_known(&place), "neither loaded nor hinted at");
            node.end().await;
            format!("{loaded}")
        })
    });
}
