//! Produces: appended at once; with `acks=all` parked until the follower has it, too.

use crate::answers::NO_TRANSACTIONS;
use crate::broker::Broker;
use crate::delays::LONGEST;
use crate::log::{Batch, Partition, Split, Topic};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};
use std::sync::Arc;
use tickwheel::purgatory::DelayedOperation;
use tokio::sync::oneshot;

/// A produce that is appended, and waits for the follower.
pub struct DelayedProduce {
    appended: Vec<Appended>,
    /// As it is when the follower has everything.
    response: ProduceResponse,
    /// `None` once it is answered.
    answer: Option<oneshot::Sender<ProduceResponse>>,
}

/// What one partition got.
pub struct Appended {
    pub partition: Arc<Partition>,
    /// The follower has it when it has everything up to here.
    pub end: i64,
    /// Where its answer is: the topic's and the partition's place in the response.
    place: (usize, usize),
}

/// Appends what a request brings, and makes its response.
pub fn append(broker: &Broker, request: &ProduceRequest) -> (Vec<Appended>, ProduceResponse) {
    let refused = refused(request);
    let mut appended = Vec::new();
    let mut responses = Vec::new();
    for (topic_place, topic) in request.topic_data.iter().enumerate() {
        let mut partitions = Vec::new();
        let found = broker.topics.find(&topic.name, topic.topic_id);
        for (place, data) in topic.partition_data.iter().enumerate() {
            let response = PartitionProduceResponse::default().with_index(data.index);
            let result = refused.map_or_else(|| append_one(broker, &found, data), Err);
            partitions.push(match result {
                Ok((partition, base_offset, end)) => {
                    let start = partition.offsets().0;
                    appended.push(Appended { partition, end, place: (topic_place, place) });
                    response.with_base_offset(base_offset).with_log_start_offset(start)
                }
                Err(error) => response.with_error_code(error.code()).with_base_offset(-1),
            });
        }
        responses.push(
            TopicProduceResponse::default()
                .with_name(topic.name.clone())
                .with_topic_id(topic.topic_id)
                .with_partition_responses(partitions),
        );
    }
    (appended, ProduceResponse::default().with_responses(responses))
}

/// Returns why a whole request is refused, if it is.
fn refused(request: &ProduceRequest) -> Option<ResponseError> {
    match request {
        // There are no transactions here.
        ProduceRequest { transactional_id: Some(_), .. } => Some(NO_TRANSACTIONS),
        ProduceRequest { acks: -1..=1, .. } => None,
        _ => Some(ResponseError::InvalidRequiredAcks),
    }
}

fn append_one(
    broker: &Broker,
    topic: &Result<Arc<Topic>, ResponseError>,
    data: &PartitionProduceData,
) -> Result<(Arc<Partition>, i64, i64), ResponseError> {
    let partition = topic.as_ref().map_err(|error| *error)?.partition(data.index).cloned();
    let partition = partition.ok_or(ResponseError::UnknownTopicOrPartition)?;
    let records = data.records.as_ref().ok_or(ResponseError::CorruptMessage)?;
    let batch = Batch::check(records, broker.limits.max_message)?;
    let now = broker.delays.now();
    let split = Split::new(batch, now);
    let longest = now.saturating_add(LONGEST.as_millis() as i64);
    if split.as_ref().is_some_and(|split| split.later.iter().any(|(time, _)| *time > longest)) {
        return Err(ResponseError::InvalidTimestamp);
    }
    let is_split = split.is_some();
    let (base_offset, end) = partition.append(batch, split)?;
    if is_split {
        broker.delays.watch(&partition);
    }
    if let Some(sequence) = batch.sequence {
        broker.producers.keep(&partition, sequence.producer_id);
    }
    Ok((partition, base_offset, end))
}

impl DelayedProduce {
    pub fn new(
        appended: Vec<Appended>,
        response: ProduceResponse,
    ) -> (Self, oneshot::Receiver<ProduceResponse>) {
        let (answer, answered) = oneshot::channel();
        (DelayedProduce { appended, response, answer: Some(answer) }, answered)
    }
}

impl Appended {
    fn is_replicated(&self) -> bool {
        self.partition.offsets().1 >= self.end
    }
}

impl DelayedOperation for DelayedProduce {
    fn try_complete(&mut self) -> bool {
        self.appended.iter().all(Appended::is_replicated)
    }

    /// Answers that the records which the follower does not have by now have timed out. They stay
    /// in the log all the same.
    fn on_complete(&mut self) {
        for appended in self.appended.iter().filter(|appended| !appended.is_replicated()) {
            let (topic, partition) = appended.place;
            let response = &mut self.response.responses[topic].partition_responses[partition];
            response.error_code = ResponseError::RequestTimedOut.code();
            response.base_offset = -1;
        }
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(std::mem::take(&mut self.response));
        }
    }
}
