//! The requests that are answered here, in which versions, and what lies in them.
//!
//! All of them are from before the "flexible" versions, with their lengths of varying length: every
//! client still speaks these, and they are half as long to describe.

use super::bounds::Field::{self, Array, Bytes, Fixed, Since, Text};
use kafka_protocol::messages::ApiKey;
use std::ops::RangeInclusive;

/// A kind of request.
pub(crate) struct Api {
    pub(crate) key: ApiKey,
    pub(crate) versions: RangeInclusive<i16>,
    /// What its body is made of.
    pub(super) body: &'static [Field],
}

pub(crate) static APIS: [Api; 13] = [
    api(ApiKey::Produce, 3..=8, &[Text, Fixed(6), Array(&[Text, Array(&[Fixed(4), Bytes])])]),
    api(
        ApiKey::Fetch,
        4..=11,
        &[
            Fixed(17),
            Since(7, &[Fixed(8)]),
            Array(&[
                Text,
                Array(&[
                    Fixed(4),
                    Since(9, &[Fixed(4)]),
                    Fixed(8),
                    Since(5, &[Fixed(8)]),
                    Fixed(4),
                ]),
            ]),
            Since(7, &[Array(&[Text, Array(&[Fixed(4)])])]),
            Since(11, &[Text]),
        ],
    ),
    api(
        ApiKey::ListOffsets,
        1..=5,
        &[
            Fixed(4),
            Since(2, &[Fixed(1)]),
            Array(&[Text, Array(&[Fixed(4), Since(4, &[Fixed(4)]), Fixed(8)])]),
        ],
    ),
    api(ApiKey::Metadata, 0..=7, &[Array(&[Text]), Since(4, &[Fixed(1)])]),
    api(
        ApiKey::OffsetCommit,
        2..=4,
        &[Text, Fixed(4), Text, Fixed(8), Array(&[Text, Array(&[Fixed(12), Text])])],
    ),
    api(ApiKey::OffsetFetch, 1..=5, &[Text, Array(&[Text, Array(&[Fixed(4)])])]),
    api(ApiKey::FindCoordinator, 0..=2, &[Text, Since(1, &[Fixed(1)])]),
    api(
        ApiKey::JoinGroup,
        0..=3,
        &[Text, Fixed(4), Since(1, &[Fixed(4)]), Text, Text, Array(&[Text, Bytes])],
    ),
    api(ApiKey::Heartbeat, 0..=2, &[Text, Fixed(4), Text]),
    api(ApiKey::LeaveGroup, 0..=2, &[Text, Text]),
    api(ApiKey::SyncGroup, 0..=2, &[Text, Fixed(4), Text, Array(&[Text, Bytes])]),
    api(ApiKey::ApiVersions, 0..=2, &[]),
    api(ApiKey::InitProducerId, 0..=1, &[Text, Fixed(4)]),
];

const fn api(key: ApiKey, versions: RangeInclusive<i16>, body: &'static [Field]) -> Api {
    Api { key, versions, body }
}
