//! Fetches: a consumer's long poll, parked until there are bytes enough or its time is up.

use crate::log::{Partition, Topics};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::{FetchRequest, FetchResponse, TopicName};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::purgatory::DelayedOperation;
use tokio::sync::oneshot;

/// No answer is larger, whatever a consumer would take.
const MAX_BYTES: i32 = 50 << 20;

/// A fetch with all that is needed to answer it.
pub struct DelayedFetch {
    wanted: Vec<Wanted>,
    min_bytes: u64,
    max_bytes: usize,
    /// `None` once it is answered.
    answer: Option<oneshot::Sender<FetchResponse>>,
}

/// One partition of it.
struct Wanted {
    topic: TopicName,
    index: i32,
    partition: Option<Arc<Partition>>,
    offset: i64,
    max_bytes: usize,
}

impl DelayedFetch {
    pub fn new(request: FetchRequest, topics: &Topics) -> (Self, oneshot::Receiver<FetchResponse>) {
        let mut wanted = Vec::new();
        let mut places = HashMap::new();
        for topic in request.topics {
            for partition in topic.partitions {
                let one = Wanted {
                    topic: topic.topic.clone(),
                    index: partition.partition,
                    partition: topics.partition(&topic.topic, partition.partition),
                    offset: partition.fetch_offset,
                    max_bytes: size(partition.partition_max_bytes),
                };
                // Of those that name the same partition the last one counts, as with Kafka.
                match places.entry((topic.topic.clone(), partition.partition)) {
                    Entry::Occupied(place) => wanted[*place.get()] = one,
                    Entry::Vacant(place) => {
                        place.insert(wanted.len());
                        wanted.push(one);
                    }
                }
            }
        }
        let max_bytes = request.max_bytes.min(MAX_BYTES);
        let (answer, answered) = oneshot::channel();
        let fetch = DelayedFetch {
            wanted,
            // What can't be answered must not be waited for.
            min_bytes: size(request.min_bytes.min(max_bytes)) as u64,
            max_bytes: size(max_bytes),
            answer: Some(answer),
        };
        (fetch, answered)
    }

    /// Returns the partitions that the fetch waits for.
    pub fn partitions(&self) -> impl Iterator<Item = &Arc<Partition>> {
        self.wanted.iter().filter_map(|wanted| wanted.partition.as_ref())
    }

    fn answer(&self) -> FetchResponse {
        let mut room = self.max_bytes;
        let mut is_first = true;
        let mut topics: Vec<FetchableTopicResponse> = Vec::new();
        for wanted in &self.wanted {
            let data = wanted.read(room, is_first);
            let length = data.records.as_ref().map_or(0, |records| records.len());
            is_first &= length == 0;
            room = room.saturating_sub(length);
            match topics.last_mut() {
                Some(topic) if topic.topic == wanted.topic => topic.partitions.push(data),
                _ => topics.push(
                    FetchableTopicResponse::default()
                        .with_topic(wanted.topic.clone())
                        .with_partitions(vec![data]),
                ),
            }
        }
        FetchResponse::default().with_responses(topics)
    }
}

impl Wanted {
    fn available(&self) -> Result<u64, ResponseError> {
        let partition = self.partition.as_ref().ok_or(ResponseError::UnknownTopicOrPartition)?;
        Ok(partition.available(self.offset)?.min(self.max_bytes as u64))
    }

    fn read(&self, room: usize, at_least_one: bool) -> PartitionData {
        let data = PartitionData::default().with_partition_index(self.index);
        let Some(partition) = &self.partition else {
            return data.with_error_code(ResponseError::UnknownTopicOrPartition.code());
        };
        match partition.read(self.offset, room.min(self.max_bytes), at_least_one) {
            Ok((records, high_watermark)) => data
                .with_high_watermark(high_watermark)
                .with_last_stable_offset(high_watermark)
                .with_log_start_offset(partition.offsets().0)
                .with_records(Some(records)),
            Err(error) => data.with_error_code(error.code()).with_high_watermark(-1),
        }
    }
}

impl DelayedOperation for DelayedFetch {
    /// Returns whether there is enough, or an error to report.
    fn try_complete(&mut self) -> bool {
        let mut sum = 0;
        for wanted in &self.wanted {
            match wanted.available() {
                Ok(bytes) => sum += bytes,
                Err(_) => return true,
            }
        }
        sum >= self.min_bytes
    }

    /// Answers with what there is, also when the time is up.
    fn on_complete(&mut self) {
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(self.answer()); // Fails if the client has gone.
        }
    }
}

/// Implements the usual long poll of a broker without a purgatory: look, sleep, look again.
pub async fn sleep_and_look_again(
    timer: &Timer,
    mut fetch: DelayedFetch,
    max_wait: Duration,
    pause: Duration,
) {
    let deadline = timer.now() + max_wait;
    while !fetch.try_complete() {
        let left = deadline.saturating_duration_since(timer.now());
        if left.is_zero() || timer.sleep(pause.min(left)).await.is_err() {
            break;
        }
    }
    fetch.on_complete();
}

/// Returns a size that a client names; a negative one counts as zero.
fn size(bytes: i32) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}
