//! A small Kafka broker in memory, on tickwheel. Fetches, produces and joins that can't be answered
//! yet wait in purgatories, sessions and the follower are keyed timers; one timer expires them all.

#![forbid(unsafe_code)]

// In reading order: what waits for records, what waits for members, and what serves both.
mod log;
mod produce;
mod fetch;
mod group;
mod metadata;
mod wire;
mod server;

pub use server::{Counts, Server};
pub use wire::{Malformed, Request, decode, encode};

use clap::Parser;
use group::Coordinator;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiVersionsResponse, RequestKind, ResponseKind};
use log::{Partition, TopicPartition, Topics};
use metadata::Ids;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::purgatory::{FutureOperation, Purgatory};
use wire::{APIS, Api};

/// A small Kafka broker in memory.
///
/// Fetches, produces and joins that can't be answered yet wait in purgatories, sessions are keyed
/// timers, and one timer expires them all.
#[derive(Clone, Debug, Parser)]
#[command(name = "tickwheel-broker")]
pub struct Options {
    /// Where clients connect, and where they are told to come back to; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9092")]
    pub listen: SocketAddr,

    /// Partitions of a new topic
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    pub partitions: u16,

    /// How late the follower has what was appended
    #[arg(long, value_name = "MS", default_value_t = 5)]
    pub follower_lag_ms: u32,

    /// Connections; what comes beyond is closed at once
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub max_connections: usize,
}

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

/// Nothing is waited for any longer, whatever the client asks for.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(600);

pub struct Broker {
    /// What clients are told to connect to.
    pub(crate) address: SocketAddr,
    pub(crate) topics: Topics,
    /// Wait on the partitions that they read, for bytes.
    pub(crate) fetches: Purgatory<TopicPartition, FutureOperation>,
    /// Wait on the partitions that they have written to, for the follower.
    pub(crate) produces: Purgatory<TopicPartition, FutureOperation>,
    /// The partitions in which the follower lacks something. It gets all of it, so one timer for
    /// each partition is enough, however much is appended.
    follower: KeyedTimer<TopicPartition, Arc<Partition>>,
    follower_lag: Duration,
    pub(crate) groups: Arc<Coordinator>,
    pub(crate) producer_ids: Ids,
}

impl Broker {
    /// Creates a broker in which everything waits on `timer`.
    pub fn new(options: &Options, address: SocketAddr, timer: &Timer) -> Arc<Self> {
        Arc::new_cyclic(|broker: &Weak<Self>| {
            let broker = Weak::clone(broker);
            let copy = move |_, partition: Arc<Partition>| {
                if let Some(broker) = broker.upgrade() {
                    broker.copy(&partition);
                }
            };
            Broker {
                address,
                topics: Topics::new(options.partitions),
                fetches: Purgatory::new(timer),
                produces: Purgatory::new(timer),
                follower: KeyedTimer::new(timer, copy),
                follower_lag: Duration::from_millis(options.follower_lag_ms.into()),
                groups: Coordinator::new(timer),
                producer_ids: Ids::new(),
            }
        })
    }

    /// Answers a request, as soon as it can be answered. Returns `None` if the client wants no
    /// answer. If the future is dropped, because the client has gone, nothing waits any more.
    pub async fn answer(&self, request: Request) -> Option<ResponseKind> {
        let version = request.version;
        Some(match request.body {
            RequestKind::ApiVersions(_) => api_versions().into(),
            RequestKind::Metadata(body) => self.metadata(body, version).into(),
            RequestKind::Produce(body) => self.produce(body).await?.into(),
            RequestKind::Fetch(body) => self.fetch(body).await.into(),
            RequestKind::ListOffsets(body) => self.list_offsets(body).into(),
            RequestKind::InitProducerId(body) => self.init_producer(&body).into(),
            RequestKind::FindCoordinator(body) => self.find_coordinator(&body).into(),
            RequestKind::JoinGroup(body) => self.groups.join(body).await.into(),
            RequestKind::SyncGroup(body) => self.groups.sync(body).await.into(),
            RequestKind::Heartbeat(body) => self.groups.heartbeat(&body).into(),
            RequestKind::LeaveGroup(body) => self.groups.leave(&body).into(),
            RequestKind::OffsetCommit(body) => self.groups.commit(body, &self.topics).into(),
            RequestKind::OffsetFetch(body) => self.groups.committed(body).into(),
            _ => return None, // `decode` lets nothing else through.
        })
    }

    /// Sees to it that the follower gets what was appended to a partition.
    pub(crate) fn replicate(&self, partition: &Arc<Partition>) {
        let Entry::Vacant(late) = self.follower.entry(partition.name.clone()) else {
            return;
        };
        match late.add(self.follower_lag, Arc::clone(partition)) {
            Ok(None) => {}
            // The time of the former one is up, or the timer was shut down.
            Ok(Some(_)) | Err(_) => self.copy(partition),
        }
    }

    /// Lets the follower have a partition, which makes it visible to consumers. The change comes
    /// first; then the triggers, with no lock held.
    fn copy(&self, partition: &Partition) {
        if partition.replicate() {
            self.produces.check_and_complete(&partition.name);
            self.fetches.check_and_complete(&partition.name);
        }
    }

    pub fn waiting(&self) -> Waiting {
        let (joins, sessions) = self.groups.waiting();
        Waiting {
            fetches: self.fetches.len(),
            produces: self.produces.len(),
            joins,
            sessions,
        }
    }

    /// Answers all that waits, with what there is.
    pub fn shutdown(&self) {
        drop(self.fetches.shutdown());
        drop(self.produces.shutdown());
        self.groups.shutdown();
    }
}

/// Returns which requests are answered, in which versions.
pub(crate) fn api_versions() -> ApiVersionsResponse {
    let version = |api: &Api| {
        ApiVersion::default()
            .with_api_key(api.key as i16)
            .with_min_version(*api.versions.start())
            .with_max_version(*api.versions.end())
    };
    ApiVersionsResponse::default().with_api_keys(APIS.iter().map(version).collect())
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting {
            fetches,
            produces,
            joins,
            sessions,
        } = self;
        write!(
            f,
            "{fetches} fetches, {produces} produces, {joins} joins, {sessions} sessions"
        )
    }
}
