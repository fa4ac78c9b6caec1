//! The requests that this broker answers, in which versions, and what lies in them.
//!
//! All but the newest ApiVersions are in the older, non-flexible encoding: every client still
//! speaks it.

use super::bounds::Field::{self, Array, Before, Bytes, Fixed, Since, Text};
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
pub static SUPPORTED: [Api; 13] = [
    api(ApiKey::Produce, 3, 8, PRODUCE),
    api(ApiKey::Fetch, 4, 11, FETCH),
    api(ApiKey::ListOffsets, 1, 5, LIST_OFFSETS),
    api(ApiKey::Metadata, 0, 8, METADATA),
    api(ApiKey::OffsetCommit, 2, 6, OFFSET_COMMIT),
    api(ApiKey::OffsetFetch, 1, 5, &[Text, Array(&[Text, Array(&[Fixed(4)])])]),
    api(ApiKey::FindCoordinator, 0, 2, &[Text, Since(1, &[Fixed(1)])]),
    api(ApiKey::JoinGroup, 0, 3, JOIN_GROUP),
    api(ApiKey::Heartbeat, 0, 2, &[Text, Fixed(4), Text]),
    api(ApiKey::LeaveGroup, 0, 2, &[Text, Text]),
    api(ApiKey::SyncGroup, 0, 2, &[Text, Fixed(4), Text, Array(&[Text, Bytes])]),
    // Its third version is flexible, and has no array in it.
    api(ApiKey::ApiVersions, 0, 3, &[]),
    api(ApiKey::InitProducerId, 0, 1, &[Text, Fixed(4)]),
];

const PRODUCE: &[Field] = &[Text, Fixed(6), Array(&[Text, Array(&[Fixed(4), Bytes])])];
const FETCH: &[Field] = &[
    Fixed(17),
    Since(7, &[Fixed(8)]),
    Array(&[
        Text,
        Array(&[Fixed(4), Since(9, &[Fixed(4)]), Fixed(8), Since(5, &[Fixed(8)]), Fixed(4)]),
    ]),
    Since(7, &[Array(&[Text, Array(&[Fixed(4)])])]),
    Since(11, &[Text]),
];
const LIST_OFFSETS: &[Field] = &[
    Fixed(4),
    Since(2, &[Fixed(1)]),
    Array(&[Text, Array(&[Fixed(4), Since(4, &[Fixed(4)]), Fixed(8)])]),
];
const METADATA: &[Field] = &[Array(&[Text]), Since(4, &[Fixed(1)]), Since(8, &[Fixed(2)])];
const OFFSET_COMMIT: &[Field] = &[
    Text,
    Fixed(4),
    Text,
    Before(5, &[Fixed(8)]),
    Array(&[Text, Array(&[Fixed(12), Since(6, &[Fixed(4)]), Text])]),
];
const JOIN_GROUP: &[Field] =
    &[Text, Fixed(4), Since(1, &[Fixed(4)]), Text, Text, Array(&[Text, Bytes])];

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
