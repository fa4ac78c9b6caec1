//! Metadata: which topics there are, and where they and the groups are to be found: here.

use crate::answers::NO_TRANSACTIONS;
use crate::broker::Broker;
use crate::log::Topic;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, DescribeClusterRequest, DescribeClusterResponse, FindCoordinatorRequest,
    FindCoordinatorResponse, MetadataRequest, MetadataResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

/// This broker's number: it is alone.
const NODE: BrokerId = BrokerId(1);
const CLUSTER: StrBytes = StrBytes::from_static_str("tickwheel");
/// DescribeCluster's name for brokers, as opposed to controllers.
const BROKERS: i8 = 1;

impl Broker {
    fn host(&self) -> StrBytes {
        StrBytes::from_string(self.address.ip().to_string())
    }

    fn port(&self) -> i32 {
        self.address.port().into()
    }

    pub(crate) fn metadata(&self, request: &MetadataRequest, version: i16) -> MetadataResponse {
        let asked = request.topics.as_ref().filter(|topics| version > 0 || !topics.is_empty());
        let create = version < 4 || request.allow_auto_topic_creation;
        let topics = match asked {
            None => {
                let all = self.topics.all();
                all.iter().map(|topic| described(topic, version)).collect()
            }
            Some(topics) => {
                topics.iter().map(|topic| self.describe(topic, create, version)).collect()
            }
        };
        let broker = MetadataResponseBroker::default()
            .with_node_id(NODE)
            .with_host(self.host())
            .with_port(self.port());
        MetadataResponse::default()
            .with_brokers(vec![broker])
            .with_cluster_id(Some(CLUSTER))
            .with_controller_id(NODE)
            .with_topics(topics)
    }

    fn describe(
        &self,
        asked: &MetadataRequestTopic,
        create: bool,
        version: i16,
    ) -> MetadataResponseTopic {
        let found = match &asked.name {
            Some(name) if create => self.topics.get_or_create(name),
            name => self.topics.find(name.as_deref().map_or("", |name| name), asked.topic_id),
        };
        match found {
            Ok(topic) => described(&topic, version),
            Err(error) => MetadataResponseTopic::default()
                .with_name(asked.name.clone().or_else(|| (version < 12).then(TopicName::default)))
                .with_topic_id(asked.topic_id)
                .with_error_code(error.code()),
        }
    }

    /// Finds coordinators: one in old versions, several at once in later ones.
    pub(crate) fn find_coordinator(
        &self,
        request: FindCoordinatorRequest,
        version: i16,
    ) -> FindCoordinatorResponse {
        let error = match request.key_type {
            0 => None,
            1 => Some(NO_TRANSACTIONS),
            _ => Some(ResponseError::InvalidRequest),
        };
        let code = error.map_or(0, |error| error.code());
        let (node, host, port) = match error {
            None => (NODE, self.host(), self.port()),
            Some(_) => (BrokerId(-1), StrBytes::new(), -1),
        };
        let response = FindCoordinatorResponse::default();
        if version < 4 {
            let response = response.with_node_id(node).with_host(host).with_port(port);
            return response.with_error_code(code);
        }
        let coordinators = request.coordinator_keys.into_iter().map(|key| {
            Coordinator::default()
                .with_key(key)
                .with_node_id(node)
                .with_host(host.clone())
                .with_port(port)
                .with_error_code(code)
        });
        response.with_coordinators(coordinators.collect())
    }

    pub(crate) fn describe_cluster(
        &self,
        request: &DescribeClusterRequest,
    ) -> DescribeClusterResponse {
        let response = DescribeClusterResponse::default();
        if request.endpoint_type != BROKERS {
            let code = ResponseError::UnsupportedEndpointType.code();
            return response.with_error_code(code).with_endpoint_type(request.endpoint_type);
        }
        let broker = DescribeClusterBroker::default()
            .with_broker_id(NODE)
            .with_host(self.host())
            .with_port(self.port());
        response
            .with_endpoint_type(BROKERS)
            .with_cluster_id(CLUSTER)
            .with_controller_id(NODE)
            .with_brokers(vec![broker])
    }
}

fn described(topic: &Topic, version: i16) -> MetadataResponseTopic {
    let partition = |index| {
        MetadataResponsePartition::default()
            .with_partition_index(index as i32)
            .with_leader_id(NODE)
            .with_leader_epoch(0)
            .with_replica_nodes(vec![NODE])
            .with_isr_nodes(vec![NODE])
    };
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(topic.name.to_string()))))
        .with_topic_id(if version >= 10 { topic.id } else { Uuid::nil() })
        .with_partitions((0..topic.len()).map(partition).collect())
}
