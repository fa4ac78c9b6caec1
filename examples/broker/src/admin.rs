//! What tools ask of the broker: to create and to delete topics, and how it is configured.

use crate::broker::Broker;
use crate::log::Topic;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::{
    CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeConfigsRequest, DescribeConfigsResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::sync::Arc;
use uuid::Uuid;

/// What DescribeConfigs calls topics, and brokers.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// Where a value comes from: it was given to the broker when it started.
const STATIC: i8 = 4;
/// What a value is: a whole number.
const LONG: i8 = 5;

impl Broker {
    pub(crate) fn create_topics(
        &self,
        request: CreateTopicsRequest,
        version: i16,
    ) -> CreateTopicsResponse {
        let results = request.topics.into_iter().map(|topic| {
            let result = CreatableTopicResult::default().with_name(topic.name.clone());
            match self.create_topic(&topic, request.validate_only) {
                Ok(made) => result
                    .with_num_partitions(made.len() as i32)
                    .with_topic_id(if version >= 7 { made.id } else { Uuid::nil() })
                    .with_replication_factor(1)
                    .with_configs(Some(Vec::new())),
                Err((error, why)) => result
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_static_str(why))),
            }
        });
        CreateTopicsResponse::default().with_topics(results.collect())
    }

    fn create_topic(
        &self,
        topic: &CreatableTopic,
        validate_only: bool,
    ) -> Result<Arc<Topic>, (ResponseError, &'static str)> {
        let partitions = match topic.num_partitions {
            -1 => self.topics.default_partitions(),
            count => count,
        };
        if !topic.assignments.is_empty() {
            let error = ResponseError::InvalidReplicaAssignment;
            return Err((error, "all replicas are on the one broker that there is"));
        }
        if !matches!(topic.replication_factor, -1 | 1) {
            return Err((ResponseError::InvalidReplicationFactor, "there is one broker"));
        }
        if !topic.configs.is_empty() {
            return Err((ResponseError::InvalidConfig, "topics have no configuration here"));
        }
        self.topics.create(&topic.name, partitions, validate_only)
    }

    pub(crate) fn delete_topics(
        &self,
        request: DeleteTopicsRequest,
        version: i16,
    ) -> DeleteTopicsResponse {
        let topics: Vec<DeleteTopicState> = match version {
            ..6 => {
                let named = |name| DeleteTopicState::default().with_name(Some(name));
                request.topic_names.into_iter().map(named).collect()
            }
            _ => request.topics,
        };
        let results = topics.into_iter().map(|topic| {
            let name = topic.name.as_deref().map_or("", |name| name);
            let found = self.topics.find(name, topic.topic_id);
            let code = match found {
                Ok(topic) => {
                    self.delete_topic(&topic);
                    0
                }
                Err(error) => error.code(),
            };
            DeletableTopicResult::default()
                .with_name(topic.name)
                .with_topic_id(topic.topic_id)
                .with_error_code(code)
        });
        DeleteTopicsResponse::default().with_responses(results.collect())
    }

    fn delete_topic(&self, topic: &Topic) {
        self.topics.delete(topic);
        for partition in topic.iter() {
            partition.delete();
            // Who waits for it is told.
            self.produces.check_and_complete(&partition.name);
            self.fetches.check_and_complete(&partition.name);
        }
        self.producers.forget_topic(&topic.name);
        self.groups.forget_topic(&topic.name);
    }

    pub(crate) fn describe_configs(
        &self,
        request: DescribeConfigsRequest,
    ) -> DescribeConfigsResponse {
        let results = request.resources.into_iter().map(|resource| self.describe_config(resource));
        DescribeConfigsResponse::default().with_results(results.collect())
    }

    fn describe_config(&self, resource: DescribeConfigsResource) -> DescribeConfigsResult {
        let limits = &self.limits;
        let (error, configs) = match resource.resource_type {
            TOPIC if self.topics.get(&resource.resource_name).is_none() => {
                (Some(ResponseError::UnknownTopicOrPartition), vec![])
            }
            TOPIC => (
                None,
                vec![
                    ("max.message.bytes", limits.max_message as u64),
                    ("retention.bytes", limits.max_partition_bytes),
                ],
            ),
            BROKER => (
                None,
                vec![
                    ("message.max.bytes", limits.max_message as u64),
                    ("log.retention.bytes", limits.max_partition_bytes),
                    ("socket.request.max.bytes", limits.max_frame as u64),
                    ("max.connections", limits.max_connections as u64),
                    ("num.partitions", self.topics.default_partitions().unsigned_abs().into()),
                ],
            ),
            _ => (Some(ResponseError::InvalidRequest), vec![]),
        };
        let wanted = |(name, _): &(&str, u64)| match &resource.configuration_keys {
            Some(keys) => keys.iter().any(|key| **key == **name),
            None => true,
        };
        let configs = configs.into_iter().filter(wanted).map(|(name, value)| {
            DescribeConfigsResourceResult::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(Some(StrBytes::from_string(value.to_string())))
                .with_read_only(true)
                .with_config_source(STATIC)
                .with_config_type(LONG)
        });
        DescribeConfigsResult::default()
            .with_error_code(error.map_or(0, |error| error.code()))
            .with_resource_type(resource.resource_type)
            .with_configs(configs.collect())
            .with_resource_name(resource.resource_name)
    }
}
