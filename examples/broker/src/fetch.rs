//! Fetches: a consumer's long poll, parked until there are bytes enough or its time is up.

use crate::answers::Answer;
use crate::budget::{Budget, FREE};
use crate::log::{Partition, Topic, TopicPartition, Topics};
use bytes::Bytes;
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
use uuid::Uuid;

/// No answer is larger, whatever a consumer would take.
const MAX_BYTES: i32 = 50 << 20;

/// When there is no room, so much is answered all the same, if there is room for that.
const LITTLE: usize = 64 << 10;
/// And if there is none, the consumer is to come back after so long.
const THROTTLE: Duration = Duration::from_secs(1);

/// A fetch that waits.
pub struct DelayedFetch {
    min_bytes: u64,
    /// `None` once it is over.
    wants: Option<(Wants, oneshot::Sender<Wants>)>,
}

/// What a consumer wants: all that is needed to answer it.
pub struct Wants {
    partitions: Vec<Wanted>,
    max_bytes: usize,
}

/// One partition of it.
struct Wanted {
    topic: TopicName,
    topic_id: Uuid,
    index: i32,
    partition: Result<Arc<Partition>, ResponseError>,
    offset: i64,
    max_bytes: usize,
}

impl DelayedFetch {
    pub fn new(request: FetchRequest, topics: &Topics) -> (Self, oneshot::Receiver<Wants>) {
        let mut wanted = Vec::new();
        let mut places = HashMap::new();
        for topic in request.topics {
            let found = topics.find(&topic.topic, topic.topic_id);
            for partition in topic.partitions {
                let one = Wanted {
                    topic: topic.topic.clone(),
                    topic_id: topic.topic_id,
                    index: partition.partition,
                    partition: one_of(&found, partition.partition),
                    offset: partition.fetch_offset,
                    max_bytes: size(partition.partition_max_bytes),
                };
                // Of those that name the same partition the last one counts, as with Kafka.
                match places.entry((topic.topic.clone(), topic.topic_id, one.index)) {
                    Entry::Occupied(place) => wanted[*place.get()] = one,
                    Entry::Vacant(place) => {
                        place.insert(wanted.len());
                        wanted.push(one);
                    }
                }
            }
        }
        let max_bytes = request.max_bytes.min(MAX_BYTES);
        let wants = Wants { partitions: wanted, max_bytes: size(max_bytes) };
        let (answer, answered) = oneshot::channel();
        let fetch = DelayedFetch {
            // What can't be answered must not be waited for.
            min_bytes: size(request.min_bytes.min(max_bytes)) as u64,
            wants: Some((wants, answer)),
        };
        (fetch, answered)
    }

    /// Returns the names of the partitions that it waits for.
    pub fn keys(&self) -> Vec<TopicPartition> {
        let wanted = self.wants.iter().flat_map(|(wants, _)| &wants.partitions);
        let known = wanted.filter_map(|wanted| wanted.partition.as_ref().ok());
        known.map(|partition| partition.name.clone()).collect()
    }
}

impl Wants {
    /// Returns what there is, as far as there is room for it.
    pub fn answer(&self, budget: &Budget) -> Answer {
        for max_bytes in [self.max_bytes, self.max_bytes.min(LITTLE)] {
            let (found, length) = self.find(max_bytes, true);
            let room = (length > FREE).then(|| budget.try_take(length));
            if room.as_ref().is_none_or(Option::is_some) {
                let body = self.response(found).into();
                return Answer { body, room: room.flatten(), throttle: Duration::ZERO };
            }
        }
        let (nothing, _) = self.find(0, false);
        let throttle_ms = i32::try_from(THROTTLE.as_millis()).unwrap_or(i32::MAX);
        let body = self.response(nothing).with_throttle_time_ms(throttle_ms).into();
        Answer { body, room: None, throttle: THROTTLE }
    }

    /// Finds what to answer for each partition, and how long it is in all.
    fn find(&self, max_bytes: usize, at_least_one: bool) -> (Vec<Found>, usize) {
        let mut length = 0;
        let find = |wanted: &Wanted| {
            let room = max_bytes.saturating_sub(length).min(wanted.max_bytes);
            let found =
                wanted.partition()?.read(wanted.offset, room, at_least_one && length == 0)?;
            length += found.0.iter().map(Bytes::len).sum::<usize>();
            Ok(found)
        };
        (self.partitions.iter().map(find).collect(), length)
    }

    fn response(&self, found: Vec<Found>) -> FetchResponse {
        let mut topics: Vec<FetchableTopicResponse> = Vec::new();
        for (wanted, found) in self.partitions.iter().zip(found) {
            let data = wanted.data(found);
            match topics.last_mut() {
                Some(topic)
                    if (&topic.topic, topic.topic_id) == (&wanted.topic, wanted.topic_id) =>
                {
                    topic.partitions.push(data);
                }
                _ => topics.push(
                    FetchableTopicResponse::default()
                        .with_topic(wanted.topic.clone())
                        .with_topic_id(wanted.topic_id)
                        .with_partitions(vec![data]),
                ),
            }
        }
        FetchResponse::default().with_responses(topics)
    }
}

/// The batches of a partition, and its high watermark.
type Found = Result<(Vec<Bytes>, i64), ResponseError>;

impl Wanted {
    fn partition(&self) -> Result<&Partition, ResponseError> {
        self.partition.as_deref().map_err(|error| *error)
    }

    fn available(&self) -> Result<u64, ResponseError> {
        Ok(self.partition()?.available(self.offset)?.min(self.max_bytes as u64))
    }

    fn data(&self, found: Found) -> PartitionData {
        let data = PartitionData::default().with_partition_index(self.index);
        match found {
            Ok((batches, high_watermark)) => data
                .with_high_watermark(high_watermark)
                .with_last_stable_offset(high_watermark)
                .with_log_start_offset(self.partition().map_or(-1, |known| known.offsets().0))
                .with_records(Some(joined(batches))),
            Err(error) => data.with_error_code(error.code()).with_high_watermark(-1),
        }
    }
}

fn one_of(
    topic: &Result<Arc<Topic>, ResponseError>,
    index: i32,
) -> Result<Arc<Partition>, ResponseError> {
    let partition = topic.as_ref().map_err(|error| *error)?.partition(index);
    partition.cloned().ok_or(ResponseError::UnknownTopicOrPartition)
}

fn joined(mut batches: Vec<Bytes>) -> Bytes {
    if batches.len() == 1 {
        return batches.remove(0);
    }
    batches.concat().into()
}

impl DelayedOperation for DelayedFetch {
    /// Returns whether there is enough, or an error to report.
    fn try_complete(&mut self) -> bool {
        let Some((wants, _)) = &self.wants else { return true };
        let mut sum = 0;
        for wanted in &wants.partitions {
            match wanted.available() {
                Ok(bytes) => sum += bytes,
                Err(_) => return true,
            }
        }
        sum >= self.min_bytes
    }

    /// Completes the fetch, also when its time is up. The answer is what there is; the task of its
    /// connection makes it.
    fn on_complete(&mut self) {
        if let Some((wants, answer)) = self.wants.take() {
            let _ = answer.send(wants); // Fails if the client has gone.
        }
    }
}

/// Implements the usual long poll of a broker without a purgatory: look, sleep, look again.
pub async fn sleep_and_look_again(
    timer: &Timer,
    fetch: &mut DelayedFetch,
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
}

/// Returns a size that a client names; a negative one counts as zero.
fn size(bytes: i32) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}
