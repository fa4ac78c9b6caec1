//! One namespace on several primaries: each serves some slots, and slots move while all runs.

use crate::durable::bulk::FIRST;
use crate::durable::{Durable, DurableBuilder, hash};
use crate::entry::{
    Cancelled, DeadTimer, Due, Entry, Error, Listed, Outcome, Paused, Pending, Scheduled, Search,
    Touched, When,
};
use crate::node::batcher::fitting_rows;
use crate::store::postgres::{Postgres, PostgresServer};
use crate::store::{Bulk, NewRow, Place, Store, StoreTime};
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tickwheel::Timer;

/// A node of a namespace that lies on several PostgreSQL primaries.
///
/// Each of the namespace's 1,024 slots is served by one primary, and a key's slot follows from the
/// key. On each primary this is a [node of its own](Durable), with a lease of its own: when one
/// primary fails, the timers of the others go on. The primaries themselves know which slots they
/// serve, so all nodes agree.
///
/// Cloning shares the node.
#[derive(Clone)]
pub struct Sharded {
    nodes: Vec<Durable<Postgres>>,
    /// Which of them serves each slot, as far as is known here. Locked for a look or
    /// for a step for each slot.
    map: Arc<Mutex<Vec<Option<usize>>>>,
}

/// How long a call waits for a slot that moves.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// How many slots are moved at once: as long as these take, their timers wait.
const MOVED: u32 = 32;

impl Sharded {
    /// Starts a node on each of these primaries; see [`DurableBuilder::start`].
    ///
    /// All nodes must name the same primaries in the same order. A new namespace is served by the
    /// first one alone, and a primary that is added serves nothing:
    /// [`move_slots`](Self::move_slots) gives it its share.
    ///
    /// # Errors
    /// What opening a store says; [`Error::Unavailable`] where two primaries serve one slot: then
    /// these are not the primaries of one namespace.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and without any primary.
    pub async fn start<T, H, F>(
        primaries: Vec<DurableBuilder<PostgresServer>>,
        timer: &Timer<T>,
        handler: H,
    ) -> Result<Self, Error>
    where
        T: Send + 'static,
        H: Fn(Due) -> F + Send + Sync + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut opened: Vec<DurableBuilder<Postgres>> = Vec::new();
        let mut map = vec![None; 0];
        // The first one last: it serves all of a namespace that no other one serves.
        for (index, builder) in primaries.into_iter().enumerate().rev() {
            let is_new = map.iter().all(Option::is_none);
            let store = builder.store.open_as(index == 0 && is_new).await?;
            map.resize(store.slots() as usize, None);
            for (slot, served) in map.iter_mut().zip(store.served().await?) {
                if served && slot.replace(index).is_some() {
                    return Err(Error::unavailable("two primaries serve one slot"));
                }
            }
            opened.push(DurableBuilder { store, options: builder.options });
        }
        assert!(!opened.is_empty(), "there is no primary");
        let handler = Arc::new(handler);
        let mut nodes = Vec::new();
        for builder in opened.into_iter().rev() {
            let handler = Arc::clone(&handler);
            nodes.push(builder.start(timer, move |due| handler(due)).await?);
        }
        Ok(Sharded { nodes, map: Arc::new(Mutex::new(map)) })
    }

    /// Returns the nodes on the primaries, in order: for their [`stats`](Durable::stats).
    pub fn nodes(&self) -> &[Durable<Postgres>] {
        &self.nodes
    }

    /// Returns for each slot which primary serves it; `None` while it moves.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if a primary does not answer.
    pub async fn map(&self) -> Result<Vec<Option<usize>>, Error> {
        for (index, node) in self.nodes.iter().enumerate() {
            let served = node.store().served().await?;
            self.learn(index, &served);
        }
        Ok(lock(&self.map).clone())
    }

    /// Moves a range of slots to a primary, while everything runs: 32 slots at a time, whose timers
    /// wait until their handlers have ended, at most two seconds, and their rows are copied. What
    /// handlers still have then runs again on the other primary.
    ///
    /// If it fails, or its future is dropped, some slots may be closed: their calls wait. To ask
    /// again for the same primary ends what was begun.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Uncertain`].
    ///
    /// # Panics
    /// If there is no such primary.
    pub async fn move_slots(&self, slots: Range<u32>, to: usize) -> Result<(), Error> {
        let target = self.nodes[to].store();
        let slots = slots.start..slots.end.min(target.slots());
        for first in slots.clone().step_by(MOVED as usize) {
            let some: Vec<u32> = (first..slots.end.min(first + MOVED)).collect();
            for (index, node) in self.nodes.iter().enumerate().filter(|(index, _)| *index != to) {
                let is_here = node.store().holds(&some).await?;
                let own = some.iter().zip(is_here).filter(|(_, is_here)| *is_here);
                let own: Vec<u32> = own.map(|(slot, _)| *slot).collect();
                if !own.is_empty() {
                    node.store().move_to(target, &own).await?;
                    self.learn(index, &node.store().served().await?);
                }
            }
            self.learn(to, &target.served().await?);
        }
        Ok(())
    }

    /// Leaves all primaries: see [`Durable::drain`].
    pub async fn drain(&self) {
        for node in &self.nodes {
            node.drain().await;
        }
    }

    /// Calls the node on the primary that serves a slot; waits while that moves.
    async fn at<A, F>(&self, slot: u32, call: impl Fn(Durable<Postgres>) -> F) -> Result<A, Error>
    where
        F: Future<Output = Result<A, Error>>,
    {
        let begun = Instant::now();
        loop {
            let primary = lock(&self.map)[slot as usize];
            if let Some(primary) = primary {
                match call(self.nodes[primary].clone()).await {
                    Err(Error::Moved) => {}
                    answer => return answer,
                }
            }
            self.wait(begun).await?;
        }
    }

    /// Waits a moment, and looks who serves what.
    async fn wait(&self, begun: Instant) -> Result<(), Error> {
        if begun.elapsed() > PATIENCE {
            return Err(Error::Moved);
        }
        tokio::time::sleep(PAUSE).await;
        for (index, node) in self.nodes.iter().enumerate() {
            // One that does not answer serves what it did.
            if let Ok(served) = node.store().served().await {
                self.learn(index, &served);
            }
        }
        Ok(())
    }

    fn learn(&self, primary: usize, served: &[bool]) {
        for (slot, served) in lock(&self.map).iter_mut().zip(served) {
            if *served {
                *slot = Some(primary);
            } else if *slot == Some(primary) {
                *slot = None;
            }
        }
    }
}

impl fmt::Debug for Sharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl Sharded {
    /// Schedules a timer: see [`Durable::schedule`].
    ///
    /// # Errors
    /// As there; [`Error::Moved`] if its slot has moved for 30 s.
    pub async fn schedule(&self, entry: Entry) -> Result<Scheduled, Error> {
        let row = self.row(entry)?;
        self.at(row.place.slot, |node| {
            let row = on(&node, row.clone());
            async move { node.schedule_row(row).await }
        })
        .await
    }

    /// Schedules many timers: see [`Durable::schedule_many`].
    ///
    /// # Errors
    /// As there, and for [`schedule`](Self::schedule). Some of them may be scheduled by then.
    pub async fn schedule_many(&self, entries: Vec<Entry>) -> Result<Vec<Scheduled>, Error> {
        let rows = entries.into_iter().map(|entry| self.row(entry));
        let rows = rows.collect::<Result<Vec<NewRow>, Error>>()?;
        let mut answers = vec![Scheduled::New; rows.len()];
        let mut open: Vec<(usize, NewRow)> = rows.into_iter().enumerate().collect();
        let begun = Instant::now();
        while !open.is_empty() {
            let mut by_primary: BTreeMap<Option<usize>, Vec<(usize, NewRow)>> = BTreeMap::new();
            for (number, row) in open {
                let primary = lock(&self.map)[row.place.slot as usize];
                by_primary.entry(primary).or_default().push((number, row));
            }
            open = Vec::new();
            for (primary, rows) in by_primary {
                open.extend(match primary {
                    Some(primary) => self.schedule_some(primary, rows, &mut answers).await?,
                    None => rows,
                });
            }
            open.sort_by_key(|(number, _)| *number);
            if !open.is_empty() {
                self.wait(begun).await?;
            }
        }
        Ok(answers)
    }

    /// Schedules rows on one primary, in order, and returns those that it does not serve and what
    /// comes after them.
    async fn schedule_some(
        &self,
        primary: usize,
        rows: Vec<(usize, NewRow)>,
        answers: &mut [Scheduled],
    ) -> Result<Vec<(usize, NewRow)>, Error> {
        let node = &self.nodes[primary];
        let mut rest = rows;
        while !rest.is_empty() {
            let count = fitting_rows(rest.iter().map(|(_, row)| row));
            let batch = rest[..count].iter().map(|(_, row)| on(node, row.clone())).collect();
            match node.schedule_batch(batch).await {
                Ok(some) => {
                    for ((number, _), answer) in rest.drain(..count).zip(some) {
                        answers[number] = answer;
                    }
                }
                Err(Error::Moved) => return Ok(rest),
                Err(error) => return Err(error),
            }
        }
        Ok(rest)
    }

    /// Cancels a key's timer: see [`Durable::cancel`].
    ///
    /// # Errors
    /// As there; [`Error::Moved`] if its slot has moved for 30 s: nothing was cancelled.
    pub async fn cancel(&self, key: &str) -> Result<Cancelled, Error> {
        self.of(key, |node, key| async move { node.cancel(&key).await }).await
    }

    /// Moves a key's timer to another moment: see [`Durable::touch`].
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn touch(&self, key: &str, when: impl Into<When>) -> Result<Touched, Error> {
        let when = when.into();
        self.of(key, move |node, key| async move { node.touch(&key, when).await }).await
    }

    /// Looks a key up.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn get(&self, key: &str) -> Result<Option<Pending>, Error> {
        self.of(key, |node, key| async move { node.get(&key).await }).await
    }

    /// Cancels all timers of a tag that no handler has: see [`Durable::cancel_tag`]. Asks all
    /// primaries, and again where slots have moved meanwhile.
    ///
    /// # Errors
    /// As for [`Durable::cancel_tag`]; [`Error::Moved`] if slots have moved for 30 s.
    pub async fn cancel_tag(&self, tag: &str) -> Result<u64, Error> {
        self.each(|node| async move { node.cancel_tag(tag).await }).await
    }

    /// Moves all timers of a tag that no handler has: see [`Durable::touch_tag`]. Where slots have
    /// moved meanwhile, what has run since is moved again.
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn touch_tag(&self, tag: &str, when: impl Into<When>) -> Result<u64, Error> {
        // The same moment on each, and each time: what is due then is not counted again.
        let touch = Bulk::Touch(self.nodes[0].resolve(when), FIRST);
        self.each(|node| async move { node.steps(Some(tag), touch).await }).await
    }

    /// Makes timers that were given up due at once: see [`Durable::requeue_all`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn requeue_all(&self, tag: Option<&str>) -> Result<u64, Error> {
        let before = self.after_the_dead().await?;
        self.each(|node| async move { node.steps(tag, Bulk::Requeue(before)).await }).await
    }

    /// Deletes timers that were given up: see [`Durable::delete_dead`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn delete_dead(&self, tag: Option<&str>) -> Result<u64, Error> {
        let before = self.after_the_dead().await?;
        self.each(|node| async move { node.steps(tag, Bulk::Delete(before)).await }).await
    }

    /// Returns the latest of what the primaries say: who died keeps that time on another one.
    async fn after_the_dead(&self) -> Result<StoreTime, Error> {
        let mut latest = StoreTime::MIN;
        for node in &self.nodes {
            latest = latest.max(node.store().after_the_dead().await?);
        }
        Ok(latest)
    }

    /// Holds timers back until a time: see [`Durable::pause`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn pause(&self, tag: Option<&str>, until: impl Into<When>) -> Result<(), Error> {
        // The same moment on each: a timer that moves is let go there as well.
        let until = When::At(self.nodes[0].resolve(until).into());
        let pause = |node: Durable<Postgres>| async move { node.pause(tag, until).await };
        self.each(|node| async move { pause(node).await.map(|()| 0) }).await.map(drop)
    }

    /// Ends a pause: see [`Durable::resume`].
    ///
    /// # Errors
    /// As for [`cancel_tag`](Self::cancel_tag).
    pub async fn resume(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.each(|node| async move { node.resume(tag).await }).await
    }

    /// Lists the pauses that are not over: see [`Durable::pauses`].
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        let mut all: BTreeMap<Option<String>, StoreTime> = BTreeMap::new();
        for node in &self.nodes {
            for Paused { tag, until } in node.pauses().await? {
                let latest = all.entry(tag).or_default();
                *latest = until.max(*latest);
            }
        }
        Ok(all.into_iter().map(|(tag, until)| Paused { tag, until }).collect())
    }

    /// Adds up what the nodes on all primaries change, until no slot moves meanwhile.
    async fn each<F>(&self, call: impl Fn(Durable<Postgres>) -> F) -> Result<u64, Error>
    where
        F: Future<Output = Result<u64, Error>>,
    {
        let (begun, mut all) = (Instant::now(), 0);
        loop {
            let before = self.map().await?;
            for node in &self.nodes {
                all += call(node.clone()).await?;
            }
            if before.iter().all(Option::is_some) && self.map().await? == before {
                return Ok(all);
            }
            self.wait(begun).await?;
        }
    }

    /// Counts what is due when: see [`Durable::histogram`]. A timer that moves may be counted twice
    /// or not at all.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn histogram(&self, range: Range<SystemTime>, bars: u32) -> Result<Vec<u64>, Error> {
        let mut sums = Vec::new();
        for node in &self.nodes {
            let counts = node.histogram(range.clone(), bars).await?;
            sums.resize(counts.len(), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Ok(sums)
    }

    /// Lists timers of all primaries: see [`Durable::list`]. One that moves may be listed twice or
    /// not at all.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.page(&search, |node, search| async move { node.list(search).await }).await
    }

    /// Lists timers that were given up: see [`Durable::dead`], and [`list`](Self::list).
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.page(&search, |node, search| async move { node.dead(search).await }).await
    }

    /// Returns the first of what the nodes on all primaries list.
    async fn page<A, F>(
        &self,
        search: &Search,
        list: impl Fn(Durable<Postgres>, Search) -> F,
    ) -> Result<Vec<A>, Error>
    where
        F: Future<Output = Result<Vec<A>, Error>>,
        for<'a> &'a A: Into<Place>,
    {
        let mut all = Vec::new();
        for node in &self.nodes {
            all.extend(list(node.clone(), search.clone()).await?);
        }
        all.sort_by_key(|timer| -> Place { timer.into() });
        all.truncate(search.limit as usize);
        Ok(all)
    }

    /// Makes a timer that was given up due at once: see [`Durable::requeue`].
    ///
    /// # Errors
    /// As there.
    pub async fn requeue(&self, id: i64) -> Result<bool, Error> {
        for node in &self.nodes {
            if node.requeue(id).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a row whose slot is the number in the namespace.
    fn row(&self, entry: Entry) -> Result<NewRow, Error> {
        let mut row = self.nodes[0].row(entry)?;
        row.place.slot -= self.nodes[0].store().slot(0);
        Ok(row)
    }

    async fn of<A, F>(
        &self,
        key: &str,
        call: impl Fn(Durable<Postgres>, String) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<A, Error>>,
    {
        let store = self.nodes[0].store();
        let slot = store.slot(hash(key)) - store.slot(0);
        self.at(slot, |node| call(node, key.to_owned())).await
    }
}

/// Returns a row as it is stored on a node's primary.
fn on(node: &Durable<Postgres>, mut row: NewRow) -> NewRow {
    row.place.slot += node.store().slot(0);
    row
}
