//! Produces: appended at once. With `acks=all` one waits on its partitions for the follower.

use crate::broker::Broker;
use crate::fetch::millis;
use crate::log::{Checked, Partition};
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
        let (acks, timeout) = (request.acks, millis(request.timeout_ms));
        let (appended, mut response) = self.append(request);
        appended.iter().for_each(|one| self.replicate(&one.partition));
        match acks {
            0 => return None,
            -1 => {}
            _ => return Some(response),
        }
        let keys: Vec<_> = appended.iter().map(|one| one.partition.name.clone()).collect();
        let appended = Arc::new(appended);
        let asked = Arc::clone(&appended);
        let has_all = move || asked.iter().all(Appended::is_replicated);
        if let Ok(wait) = self.produces.wait(&keys, timeout, has_all) {
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
            ProduceRequest { transactional_id: Some(_), .. } => Some(NO_TRANSACTIONS),
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
                answers.push(match refused.map_or_else(|| append_one(partition, &data), Err) {
                    Ok((partition, base_offset, end)) => {
                        appended.push(Appended { partition, end, place: (topic_place, place) });
                        answer.with_base_offset(base_offset)
                    }
                    Err(error) => answer.with_error_code(error.code()).with_base_offset(-1),
                });
            }
            let answer = TopicProduceResponse::default().with_name(topic.name);
            responses.push(answer.with_partition_responses(answers));
        }
        (appended, ProduceResponse::default().with_responses(responses))
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
