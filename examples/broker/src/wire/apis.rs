//! The requests that this broker answers, in which versions, and what lies in them.
//!
//! Fetch is not served in its newest versions, which are for replicas. They have tagged fields
//! between others, whose lengths `kafka-protocol` does not look at: so what follows could not be
//! checked before it is decoded.

use super::bounds::Field::{self, Array, Before, Bytes, Fixed, List, Since, Text};
use kafka_protocol::messages::ApiKey;

/// A kind of request.
pub struct Api {
    pub key: ApiKey,
    pub min: i16,
    pub max: i16,
    /// What its body is made of: [`bounds`](super::bounds) looks at it before it is decoded.
    pub(super) body: &'static [Field],
}

/// What [`Api::find`] looks through.
pub static SUPPORTED: [Api; 20] = [
    api(ApiKey::Produce, 3, 13, PRODUCE),
    api(ApiKey::Fetch, 4, 16, FETCH),
    api(ApiKey::ListOffsets, 1, 10, LIST_OFFSETS),
    api(ApiKey::Metadata, 0, 13, METADATA),
    api(ApiKey::OffsetCommit, 2, 9, OFFSET_COMMIT),
    api(ApiKey::OffsetFetch, 1, 9, OFFSET_FETCH),
    api(ApiKey::FindCoordinator, 0, 6, FIND_COORDINATOR),
    api(ApiKey::JoinGroup, 0, 9, JOIN_GROUP),
    api(ApiKey::Heartbeat, 0, 4, &[Text, Fixed(4), Text, Since(3, &[Text])]),
    api(ApiKey::LeaveGroup, 0, 5, LEAVE_GROUP),
    api(ApiKey::SyncGroup, 0, 5, SYNC_GROUP),
    api(ApiKey::DescribeGroups, 0, 6, &[List(&[Text]), Since(3, &[Fixed(1)])]),
    api(ApiKey::ListGroups, 0, 5, &[Since(4, &[List(&[Text])]), Since(5, &[List(&[Text])])]),
    api(ApiKey::ApiVersions, 0, 4, &[Since(3, &[Text, Text])]),
    api(ApiKey::CreateTopics, 2, 7, CREATE_TOPICS),
    api(ApiKey::DeleteTopics, 1, 6, DELETE_TOPICS),
    api(ApiKey::InitProducerId, 0, 5, &[Text, Fixed(4), Since(3, &[Fixed(10)])]),
    api(ApiKey::DescribeConfigs, 1, 4, DESCRIBE_CONFIGS),
    api(ApiKey::DeleteGroups, 0, 2, &[List(&[Text])]),
    api(ApiKey::DescribeCluster, 0, 2, &[Fixed(1), Since(1, &[Fixed(1)]), Since(2, &[Fixed(1)])]),
];

const PRODUCE: &[Field] = &[
    Text,
    Fixed(6),
    Array(&[Before(13, &[Text]), Since(13, &[Fixed(16)]), Array(&[Fixed(4), Bytes])]),
];
const FETCH: &[Field] = &[
    Before(15, &[Fixed(4)]),
    Fixed(13),
    Since(7, &[Fixed(8)]),
    Array(&[
        Before(13, &[Text]),
        Since(13, &[Fixed(16)]),
        Array(&[
            Fixed(4),
            Since(9, &[Fixed(4)]),
            Fixed(8),
            Since(12, &[Fixed(4)]),
            Since(5, &[Fixed(8)]),
            Fixed(4),
        ]),
    ]),
    Since(7, &[Array(&[Before(13, &[Text]), Since(13, &[Fixed(16)]), List(&[Fixed(4)])])]),
    Since(11, &[Text]),
];
const LIST_OFFSETS: &[Field] = &[
    Fixed(4),
    Since(2, &[Fixed(1)]),
    Array(&[Text, Array(&[Fixed(4), Since(4, &[Fixed(4)]), Fixed(8)])]),
    Since(10, &[Fixed(4)]),
];
const METADATA: &[Field] = &[
    Array(&[Since(10, &[Fixed(16)]), Text]),
    Since(4, &[Fixed(1)]),
    Since(8, &[Before(11, &[Fixed(1)]), Fixed(1)]),
];
const OFFSET_COMMIT: &[Field] = &[
    Text,
    Fixed(4),
    Text,
    Since(7, &[Text]),
    Before(5, &[Fixed(8)]),
    Array(&[Text, Array(&[Fixed(12), Since(6, &[Fixed(4)]), Text])]),
];
const OFFSET_FETCH: &[Field] = &[
    Before(8, &[Text, Array(&[Text, List(&[Fixed(4)])])]),
    Since(8, &[Array(&[Text, Since(9, &[Text, Fixed(4)]), Array(&[Text, List(&[Fixed(4)])])])]),
    Since(7, &[Fixed(1)]),
];
const FIND_COORDINATOR: &[Field] =
    &[Before(4, &[Text]), Since(1, &[Fixed(1)]), Since(4, &[List(&[Text])])];
const JOIN_GROUP: &[Field] = &[
    Text,
    Fixed(4),
    Since(1, &[Fixed(4)]),
    Text,
    Since(5, &[Text]),
    Text,
    Array(&[Text, Bytes]),
    Since(8, &[Text]),
];
const LEAVE_GROUP: &[Field] =
    &[Text, Before(3, &[Text]), Since(3, &[Array(&[Text, Text, Since(5, &[Text])])])];
const SYNC_GROUP: &[Field] =
    &[Text, Fixed(4), Text, Since(3, &[Text]), Since(5, &[Text, Text]), Array(&[Text, Bytes])];
const CREATE_TOPICS: &[Field] = &[
    Array(&[Text, Fixed(6), Array(&[Fixed(4), List(&[Fixed(4)])]), Array(&[Text, Text])]),
    Fixed(5),
];
const DELETE_TOPICS: &[Field] =
    &[Before(6, &[List(&[Text])]), Since(6, &[Array(&[Text, Fixed(16)])]), Fixed(4)];
const DESCRIBE_CONFIGS: &[Field] =
    &[Array(&[Fixed(1), Text, List(&[Text])]), Fixed(1), Since(3, &[Fixed(1)])];

const fn api(key: ApiKey, min: i16, max: i16, body: &'static [Field]) -> Api {
    Api { key, min, max, body }
}

impl Api {
    /// Finds the API that a request's key names.
    pub fn find(key: i16) -> Option<&'static Api> {
        SUPPORTED.iter().find(|api| api.key as i16 == key)
    }

    pub fn speaks(&self, version: i16) -> bool {
        (self.min..=self.max).contains(&version)
    }
}
