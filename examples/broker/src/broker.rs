//! The broker: the log, the follower, the groups, and where requests wait for them.

use crate::answers::Answer;
use crate::budget::{Budget, FREE, Room};
use crate::counters::Counters;
use crate::delays::Delays;
use crate::fetch::{DelayedFetch, sleep_and_look_again};
use crate::follower::{Follower, Pace};
use crate::group::{self, Coordinator};
use crate::log::{Partition, Producers, TopicPartition, Topics};
use crate::parked::park;
use crate::produce::{self, DelayedProduce};
use crate::terms::{Limits, LongPoll, Terms};
use kafka_protocol::messages::{FetchRequest, ProduceRequest, ProduceResponse};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{Timer, TimerEntry};
use tokio::sync::watch;

/// How many there are that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub fetches: usize,
    pub produces: usize,
    /// Groups whose members join.
    pub joins: usize,
    /// Members of groups.
    pub sessions: usize,
}

/// What a parked fetch takes for a partition, about, in bytes.
const PARKED: usize = 256;

pub struct Broker {
    /// What clients are told to connect to.
    pub(crate) address: SocketAddr,
    pub(crate) limits: Limits,
    long_poll: LongPoll,
    /// The one of all that waits.
    pub(crate) timer: Timer,
    pub(crate) topics: Topics,
    pub(crate) follower: Follower,
    pub(crate) fetches: Purgatory<TopicPartition, DelayedFetch>,
    pub(crate) produces: Purgatory<TopicPartition, DelayedProduce>,
    pub(crate) groups: Arc<Coordinator>,
    pub(crate) counters: Counters,
    pub(crate) budget: Arc<Budget>,
    is_over: watch::Sender<bool>,
    pub(crate) next_producer: AtomicI64,
    pub(crate) producers: Producers,
    pub(crate) delays: Delays,
}

impl Broker {
    /// Creates a broker in which everything waits on `timer`, whose `max_pending` limits how much
    /// may wait.
    pub fn new(address: SocketAddr, timer: Timer, terms: &Terms) -> Arc<Self> {
        let mut limits = terms.limits;
        limits.max_frame = limits.max_frame.min(limits.max_memory);
        let budget = Arc::new(Budget::new(limits.max_memory));
        let group_terms = group::Terms {
            initial_rebalance_delay: terms.initial_rebalance_delay,
            max_groups: limits.max_groups,
            max_members: limits.max_members,
        };
        Arc::new_cyclic(|broker: &Weak<Self>| Broker {
            delays: Delays::new(&timer, {
                let broker = Weak::clone(broker);
                move |partition| {
                    if let Some(broker) = broker.upgrade() {
                        broker.deliver(&partition);
                    }
                }
            }),
            address,
            limits,
            long_poll: terms.long_poll,
            topics: Topics::new(terms.partitions, limits.max_topics, limits.max_partition_bytes),
            follower: Follower::new(terms.follower_lag),
            fetches: Purgatory::new(&timer),
            produces: Purgatory::new(&timer),
            groups: Coordinator::new(&timer, group_terms, Arc::clone(&budget)),
            producers: Producers::new(&timer, limits.max_producers),
            timer,
            counters: Counters::default(),
            budget,
            is_over: watch::Sender::new(false),
            next_producer: AtomicI64::new(1),
        })
    }

    /// Answers a fetch. Returns `None` if the server ends before the answer.
    pub(crate) async fn fetch(&self, request: FetchRequest) -> Option<Answer> {
        let max_wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
        let (mut fetch, wants) = DelayedFetch::new(request, &self.topics);
        if max_wait.is_zero() {
            fetch.on_complete();
            return Some(wants.await.ok()?.answer(&self.budget));
        }
        if let LongPoll::Sleep { pause } = self.long_poll {
            let mut end = self.end();
            tokio::select! {
                () = sleep_and_look_again(&self.timer, &mut fetch, max_wait, pause) => {}
                _ = end.wait_for(|is_over| *is_over) => {}
            }
            fetch.on_complete();
            return Some(wants.await.ok()?.answer(&self.budget));
        }
        let keys = fetch.keys();
        let size = keys.len() * PARKED;
        let _room = if size > FREE {
            let room = self.budget.try_take(size);
            if room.is_none() {
                fetch.on_complete();
                return Some(wants.await.ok()?.answer(&self.budget));
            }
            room
        } else {
            None
        };
        let wants = park(&self.fetches, fetch, max_wait, &keys, wants).await?;
        Some(wants.answer(&self.budget))
    }

    /// Appends records. Returns `None` if nobody wants an answer, or the broker shuts down before
    /// it.
    pub(crate) async fn produce(
        self: &Arc<Self>,
        request: ProduceRequest,
        room: Option<Room>,
    ) -> Option<ProduceResponse> {
        let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        let acks = request.acks;
        let (appended, response) = produce::append(self, &request);
        drop((request, room)); // The log has it.
        for one in &appended {
            self.replicate(&one.partition, one.end);
        }
        match acks {
            0 => None,
            -1 => {
                let name = |one: &produce::Appended| one.partition.name.clone();
                let keys: Vec<_> = appended.iter().map(name).collect();
                let (produce, answer) = DelayedProduce::new(appended, response);
                park(&self.produces, produce, timeout, &keys, answer).await
            }
            _ => Some(response),
        }
    }

    /// Delivers the records of a partition that were held back and are due.
    fn deliver(self: &Arc<Self>, partition: &Arc<Partition>) {
        let end = partition.deliver(self.delays.now());
        self.delays.watch(partition);
        self.replicate(partition, end);
    }

    /// Sees to it that the follower gets a partition up to `end`: now, or as late as it is.
    fn replicate(self: &Arc<Self>, partition: &Arc<Partition>, end: i64) {
        match self.follower.pace() {
            Pace::Stopped => {}
            Pace::Running { lag } if lag.is_zero() => self.copy(partition, end),
            Pace::Running { lag } => {
                let (broker, late) = (Arc::downgrade(self), Arc::clone(partition));
                let copy = move || {
                    if let Some(broker) = broker.upgrade() {
                        broker.copy(&late, end);
                    }
                };
                if self.timer.add(TimerEntry::after(lag, copy)).is_err() {
                    self.copy(partition, end); // As many wait as may: then at once.
                }
            }
        }
    }

    /// Makes the change first, then triggers, with no lock held.
    fn copy(&self, partition: &Partition, end: i64) {
        if self.follower.copy(partition, end) {
            self.produces.check_and_complete(&partition.name);
            self.fetches.check_and_complete(&partition.name);
        }
    }

    /// Stops the follower, or lets it run. Then it first gets what it has missed.
    pub fn set_follower(&self, pace: Pace) {
        self.follower.set_pace(pace);
        for topic in self.topics.all() {
            topic.iter().for_each(|partition| self.copy(partition, i64::MAX));
        }
    }

    pub fn connections(&self) -> usize {
        self.counters.connections.load(Ordering::Relaxed)
    }

    /// Returns the bytes that requests and answers, and what groups keep, take together.
    pub fn memory(&self) -> usize {
        self.budget.taken()
    }

    /// Returns what waits now.
    pub fn waiting(&self) -> Waiting {
        let (joins, sessions) = self.groups.waiting();
        let (fetches, produces) = (self.fetches.delayed(), self.produces.delayed());
        Waiting { fetches, produces, joins, sessions }
    }

    /// Returns whether the server is ending: then nothing more is begun.
    pub(crate) fn end(&self) -> watch::Receiver<bool> {
        self.is_over.subscribe()
    }

    /// Answers all that waits, and says what it was.
    pub(crate) fn drain(&self) {
        self.is_over.send_replace(true);
        let mut fetches = self.fetches.shutdown();
        fetches.iter_mut().for_each(DelayedOperation::on_complete);
        let mut produces = self.produces.shutdown();
        produces.iter_mut().for_each(DelayedOperation::on_complete);
        let (joins, sessions) = self.groups.shutdown();
        let (fetches, produces) = (fetches.len(), produces.len());
        let what = "pending at the end, and answered";
        tracing::info!(fetches, produces, joins, sessions, "{what}");
    }

    /// Drops what is left, and says what it was.
    pub(crate) fn shutdown(&self) {
        let (producers, delays) = (self.producers.shutdown(), self.delays.shutdown());
        let other_timers = self.timer.shutdown().len();
        tracing::info!(producers, delays, other_timers, "pending at the end, and dropped");
    }
}
