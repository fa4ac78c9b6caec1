//! Fetches: long polls. One that finds too little waits on its partitions.

use crate::log::{Partition, TopicPartition, Topics};
use crate::{Broker, LONGEST_WAIT};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::{FetchRequest, FetchResponse, TopicName};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// How long an answer may be, unless the first batch alone is longer.
const MAX_BYTES: usize = 1 << 20;

/// What a consumer wants: all that is needed to answer it.
struct Fetch {
    topics: Vec<(TopicName, Vec<Wanted>)>,
    min_bytes: usize,
    max_bytes: usize,
}

struct Wanted {
    index: i32,
    /// `None` if there is none of that name.
    partition: Option<Arc<Partition>>,
    offset: i64,
    max_bytes: usize,
}

impl Broker {
    /// Answers a fetch when there are `min_bytes` or an error to report, or at `max_wait` with what
    /// there is.
    pub(crate) async fn fetch(&self, request: FetchRequest) -> FetchResponse {
        let max_wait = millis(request.max_wait_ms);
        let fetch = Arc::new(Fetch::new(request, &self.topics));
        let asked = Arc::clone(&fetch);
        // The condition is checked now, when the fetch is on its keys, and whenever the follower
        // has got something of one of them. Whoever wants what is not there is answered at once.
        if let Ok(wait) = self
            .fetches
            .wait(move || asked.is_ready(), max_wait, &fetch.keys())
        {
            wait.await;
        }
        fetch.answer()
    }
}

impl Fetch {
    fn new(request: FetchRequest, topics: &Topics) -> Self {
        let max_bytes = size(request.max_bytes).min(MAX_BYTES);
        let topics = request.topics.into_iter().map(|topic| {
            let wanted = topic.partitions.into_iter().map(|wanted| Wanted {
                index: wanted.partition,
                partition: topics.partition(&topic.topic, wanted.partition),
                offset: wanted.fetch_offset,
                max_bytes: size(wanted.partition_max_bytes),
            });
            let wanted = wanted.collect();
            (topic.topic, wanted)
        });
        // What can't be answered must not be waited for.
        let min_bytes = size(request.min_bytes).min(max_bytes);
        Fetch {
            topics: topics.collect(),
            min_bytes,
            max_bytes,
        }
    }

    /// Returns the names of the partitions that it waits on, each once.
    fn keys(&self) -> Vec<TopicPartition> {
        let wanted = self.topics.iter().flat_map(|(_, wanted)| wanted);
        let known = wanted.filter_map(|wanted| wanted.partition.as_ref());
        let names: HashSet<_> = known.map(|partition| partition.name.clone()).collect();
        names.into_iter().collect()
    }

    fn is_ready(&self) -> bool {
        let mut sum = 0;
        for wanted in self.topics.iter().flat_map(|(_, wanted)| wanted) {
            match wanted.available() {
                Ok(bytes) => sum += bytes,
                Err(_) => return true,
            }
        }
        sum >= self.min_bytes
    }

    fn answer(&self) -> FetchResponse {
        let mut room = self.max_bytes;
        let topics = self.topics.iter().map(|(topic, wanted)| {
            let partitions = wanted.iter().map(|wanted| {
                let data = wanted.read(room, room == self.max_bytes);
                room =
                    room.saturating_sub(data.records.as_ref().map_or(0, |records| records.len()));
                data
            });
            let partitions = partitions.collect();
            FetchableTopicResponse::default()
                .with_topic(topic.clone())
                .with_partitions(partitions)
        });
        FetchResponse::default().with_responses(topics.collect())
    }
}

impl Wanted {
    fn partition(&self) -> Result<&Partition, ResponseError> {
        self.partition
            .as_deref()
            .ok_or(ResponseError::UnknownTopicOrPartition)
    }

    fn available(&self) -> Result<usize, ResponseError> {
        Ok(self
            .partition()?
            .available(self.offset)?
            .min(self.max_bytes))
    }

    /// Reads as much as there is room for; the first batch in any case if nothing was read before,
    /// or its consumer would never get past it.
    fn read(&self, room: usize, is_first: bool) -> PartitionData {
        let data = PartitionData::default().with_partition_index(self.index);
        let max_bytes = room.min(self.max_bytes);
        let found = self
            .partition()
            .and_then(|it| it.read(self.offset, max_bytes, is_first));
        match found {
            Ok((records, offsets)) => data
                .with_high_watermark(offsets.high_watermark)
                .with_last_stable_offset(offsets.high_watermark)
                .with_log_start_offset(offsets.start)
                .with_records(Some(records)),
            Err(error) => data.with_error_code(error.code()).with_high_watermark(-1),
        }
    }
}

/// Returns a size that a client names; a negative one counts as zero.
fn size(bytes: i32) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}

/// Returns for how long a client is willing to wait, within reason.
pub(crate) fn millis(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0)).min(LONGEST_WAIT)
}
