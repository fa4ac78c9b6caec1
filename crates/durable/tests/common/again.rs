//! What comes back while many timers are changed, a step at a time.

use crate::stores::{Driven, Former, Moment, Step, after_the_dead};
use std::time::Duration;
use tickwheel_durable::Search;
use tickwheel_durable::store::{Bulk, Scope, Store};

impl<S: Store> Driven<S> {
    /// Has a timer and what is due die.
    async fn die(&mut self) {
        let row = (None, Moment(true, 1), false, Former::Replaced);
        self.step(&Step::Schedule(vec![row])).await;
        // What was requeued may be due in a moment.
        while !self.all().await.is_empty() {
            self.claims.clear();
            self.claim(100, false, 0).await;
            let all: Vec<_> = (0..100).map(|which| (which, 3, Moment(true, 1))).collect();
            self.acknowledge(&all).await;
        }
    }

    /// Brings dead timers back, two at a time, while those die again and others die; deletes them
    /// so. Seen to fail, where each step took what was dead by then: it went on for ever.
    pub(crate) async fn dead_ones_are_brought_back_or_deleted_once(&mut self) {
        for _ in 0..5 {
            self.die().await;
        }
        for bulk in [Bulk::Requeue, Bulk::Delete] {
            let (before, mut count) = (after_the_dead(&self.store).await, 0);
            let dead = self.store.dead(Search::new(100)).await.unwrap().len() as u64;
            let mut more = Some((0, 0));
            while more.is_some() {
                let step = self
                    .store
                    .bulk(Scope::default(), bulk(before), 2)
                    .await
                    .unwrap();
                (count, more) = (count + step.count, step.more);
                assert!(count <= dead, "one has died since");
                self.die().await;
            }
            assert_eq!(count, dead);
        }
        // What is brought back is not due before, so it dies later on any clock.
        let later = after_the_dead(&self.store)
            .await
            .plus(Duration::from_secs(3_600));
        self.store
            .bulk(Scope::default(), Bulk::Requeue(later), 100)
            .await
            .unwrap();
        let waiting = self.store.list(Search::new(100)).await.unwrap();
        assert!(!waiting.is_empty() && waiting.iter().all(|timer| timer.at == later));
    }

    /// Moves timers, two at a time, each of which runs and is due again before the next two. Seen
    /// to fail, where each step took what was due at another time: it went on for ever.
    pub(crate) async fn timers_are_moved_once(&mut self) {
        let row = |_| (None, Moment(false, 1), false, Former::Replaced);
        self.step(&Step::Schedule((0..5).map(row).collect())).await;
        let waiting = self.all().await.len() as u64;
        let (mut count, mut more) = (0, Some((0, i64::MIN)));
        while let Some(from) = more {
            let touch = Bulk::Touch(Moment(true, 1).time(), from);
            let step = self.store.bulk(Scope::default(), touch, 2).await.unwrap();
            (count, more) = (count + step.count, step.more);
            assert!(count <= waiting, "one was moved again");
            self.claims.clear();
            self.claim(100, false, 0).await;
            let all: Vec<_> = (0..100).map(|which| (which, 2, Moment(false, 2))).collect();
            self.acknowledge(&all).await;
        }
        assert_eq!(count, waiting);
    }
}
