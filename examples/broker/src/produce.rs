//! Produces: checked, and appended at once. With `acks=all` one waits on its partitions for the
//! follower. Batches stay closed, just as their producer made them, compressed or not.

use crate::Broker;
use crate::fetch::millis;
use crate::log::{Batch, Partition, Sequence};
use crate::metadata::NO_TRANSACTIONS;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};
use std::sync::Arc;

/// What one partition got.
struct Appended {
    partition: Arc<Partition>,
    /// The follower has it when it has everything up to here.
    end: i64,
    /// Where its answer is: the topic's and the partition's place in the response.
    place: (usize, usize),
}

impl Broker {
    /// Appends records. Returns `None` if nobody wants an answer.
    pub(crate) async fn produce(&self, request: ProduceRequest) -> Option<ProduceResponse> {
        let acks = request.acks;
        let timeout = millis(request.timeout_ms);
        let (appended, mut response) = self.append(request);
        appended
            .iter()
            .for_each(|one| self.replicate(&one.partition));
        match acks {
            0 => return None,
            -1 => {}
            _ => return Some(response),
        }
        let keys: Vec<_> = appended
            .iter()
            .map(|one| one.partition.name.clone())
            .collect();
        let appended = Arc::new(appended);
        let asked = Arc::clone(&appended);
        let has_all = move || asked.iter().all(Appended::is_replicated);
        if let Ok(wait) = self.produces.wait(has_all, timeout, &keys) {
            wait.await;
        }
        // Time is up for those that the follower does not have. They stay in the log all the same.
        for late in appended.iter().filter(|one| !one.is_replicated()) {
            let (topic, partition) = late.place;
            let answer = &mut response.responses[topic].partition_responses[partition];
            answer.error_code = ResponseError::RequestTimedOut.code();
            answer.base_offset = -1;
        }
        Some(response)
    }

    fn append(&self, request: ProduceRequest) -> (Vec<Appended>, ProduceResponse) {
        let refused = match request {
            ProduceRequest {
                transactional_id: Some(_),
                ..
            } => Some(NO_TRANSACTIONS),
            ProduceRequest { acks: -1..=1, .. } => None,
            _ => Some(ResponseError::InvalidRequiredAcks),
        };
        let mut appended = Vec::new();
        let mut responses = Vec::new();
        for (topic_place, topic) in request.topic_data.into_iter().enumerate() {
            let mut answers = Vec::new();
            for (place, data) in topic.partition_data.into_iter().enumerate() {
                let partition = self.topics.partition(&topic.name, data.index);
                let answer = PartitionProduceResponse::default().with_index(data.index);
                answers.push(
                    match refused.map_or_else(|| append_one(partition, &data), Err) {
                        Ok((partition, base_offset, end)) => {
                            appended.push(Appended {
                                partition,
                                end,
                                place: (topic_place, place),
                            });
                            answer.with_base_offset(base_offset)
                        }
                        Err(error) => answer.with_error_code(error.code()).with_base_offset(-1),
                    },
                );
            }
            let answer = TopicProduceResponse::default().with_name(topic.name);
            responses.push(answer.with_partition_responses(answers));
        }
        (
            appended,
            ProduceResponse::default().with_responses(responses),
        )
    }
}

fn append_one(
    partition: Option<Arc<Partition>>,
    data: &PartitionProduceData,
) -> Result<(Arc<Partition>, i64, i64), ResponseError> {
    let partition = partition.ok_or(ResponseError::UnknownTopicOrPartition)?;
    let records = data.records.as_ref().ok_or(ResponseError::CorruptMessage)?;
    let (base_offset, end) = partition.append(Checked::new(records)?)?;
    Ok((partition, base_offset, end))
}

impl Appended {
    fn is_replicated(&self) -> bool {
        self.partition.offsets().high_watermark >= self.end
    }
}

/// As Kafka's `message.max.bytes`.
const MAX_BATCH: usize = (1 << 20) + 12;
/// The bits of the attributes that only transactions set.
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// Where the header of a batch has what.
const LENGTH: usize = 8;
const LEADER_EPOCH: usize = 12;
const MAGIC: usize = 16;
const CRC: usize = 17;
/// From here on the checksum covers all.
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const MAX_TIMESTAMP: usize = 35;
const PRODUCER_ID: usize = 43;
const PRODUCER_EPOCH: usize = 51;
const BASE_SEQUENCE: usize = 53;
const RECORD_COUNT: usize = 57;
const HEADER: usize = 61;

/// A batch that was checked, as its producer sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<'a> {
    pub(crate) bytes: &'a [u8],
    /// `None` if its producer is not idempotent.
    pub(crate) sequence: Option<Sequence>,
}

impl<'a> Checked<'a> {
    /// Checks that a producer sent exactly one batch, in order and not too large.
    ///
    /// # Errors
    /// What Kafka says of such a batch.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, ResponseError> {
        if bytes.len() < HEADER {
            return Err(ResponseError::CorruptMessage);
        }
        if bytes.len() > MAX_BATCH {
            return Err(ResponseError::MessageTooLarge);
        }
        if bytes[MAGIC] != 2 {
            return Err(ResponseError::UnsupportedForMessageFormat);
        }
        if u32::from_be_bytes(at(bytes, CRC)) != crc32c::crc32c(&bytes[ATTRIBUTES..]) {
            return Err(ResponseError::CorruptMessage);
        }
        let length = i32::from_be_bytes(at(bytes, LENGTH));
        let delta = i32::from_be_bytes(at(bytes, LAST_OFFSET_DELTA));
        let attributes = i16::from_be_bytes(at(bytes, ATTRIBUTES));
        let sequence = Sequence {
            producer_id: i64::from_be_bytes(at(bytes, PRODUCER_ID)),
            epoch: i16::from_be_bytes(at(bytes, PRODUCER_EPOCH)),
            first: i32::from_be_bytes(at(bytes, BASE_SEQUENCE)),
            records: i32::from_be_bytes(at(bytes, RECORD_COUNT)),
        };
        let is_idempotent = sequence.producer_id >= 0;
        if usize::try_from(length).ok() != Some(bytes.len() - LEADER_EPOCH)
            || sequence.records < 1
            || delta != sequence.records - 1
            || attributes & CONTROL != 0
            || (is_idempotent && (sequence.epoch < 0 || sequence.first < 0))
        {
            return Err(ResponseError::InvalidRecord);
        }
        if attributes & TRANSACTIONAL != 0 {
            return Err(NO_TRANSACTIONS);
        }
        Ok(Checked {
            bytes,
            sequence: is_idempotent.then_some(sequence),
        })
    }

    /// Gives a batch its place. The checksum covers neither of the two fields that this writes.
    pub(crate) fn place(self, base_offset: i64, position: usize) -> Batch {
        let mut bytes = self.bytes.to_vec(); // The frame that it came in must not stay with it.
        bytes[..LENGTH].copy_from_slice(&base_offset.to_be_bytes());
        bytes[LEADER_EPOCH..MAGIC].copy_from_slice(&0_i32.to_be_bytes());
        let delta = i32::from_be_bytes(at(&bytes, LAST_OFFSET_DELTA));
        let max_timestamp = i64::from_be_bytes(at(&bytes, MAX_TIMESTAMP));
        let last_offset = base_offset + i64::from(delta);
        Batch {
            bytes,
            base_offset,
            last_offset,
            max_timestamp,
            position,
        }
    }
}

fn at<const N: usize>(bytes: &[u8], place: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[place + index])
}
