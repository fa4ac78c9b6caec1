//! The wire: requests and answers, from a frame and into one; which requests are answered here, in
//! which versions; and whether the lengths in one are true, before anybody believes them.

use self::Field::{Array, Blob, Fixed, Since, Text};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, RequestKind, ResponseHeader, ResponseKind};
use kafka_protocol::protocol::{Decodable, Encodable};
use std::ops::RangeInclusive;

/// What a client asks for.
#[derive(Debug)]
pub struct Request {
    pub version: i16,
    pub correlation_id: i32,
    pub body: RequestKind,
}

/// Why a frame is no request of ours.
#[derive(Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The client asks for the versions in one that is not spoken here. It is told which are.
    Versions {
        correlation_id: i32,
    },
    Other,
}

/// Decodes a frame, without its length.
///
/// # Errors
/// It is no request, or none of those that are answered here.
pub fn decode(mut frame: Bytes) -> Result<Request, Malformed> {
    // Of all requests that are answered here, in all versions.
    let header = RequestHeader::decode(&mut frame, 1).map_err(|_| Malformed::Other)?;
    let RequestHeader {
        request_api_version: version,
        correlation_id,
        ..
    } = header;
    let api = APIS
        .iter()
        .find(|api| api.key as i16 == header.request_api_key);
    let api = api.ok_or(Malformed::Other)?;
    if !api.versions.contains(&version) {
        return Err(match api.key {
            ApiKey::ApiVersions => Malformed::Versions { correlation_id },
            _ => Malformed::Other,
        });
    }
    check(&frame, version, api.body).ok_or(Malformed::Other)?;
    let body = RequestKind::decode(api.key, &mut frame, version).map_err(|_| Malformed::Other)?;
    Ok(Request {
        version,
        correlation_id,
        body,
    })
}

/// Encodes an answer, with its length. Returns `None` if it can't be encoded in this version.
pub fn encode(version: i16, correlation_id: i32, body: &ResponseKind) -> Option<BytesMut> {
    let mut frame = BytesMut::new();
    frame.put_i32(0);
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    header.encode(&mut frame, 0).ok()?;
    body.encode(&mut frame, version).ok()?;
    let length = i32::try_from(frame.len() - 4).ok()?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Some(frame)
}

/// What a body is made of.
enum Field {
    /// So many bytes.
    Fixed(usize),
    /// Its length in 2 bytes, -1 for none.
    Text,
    /// Its length in 4 bytes, -1 for none.
    Blob,
    /// Their number in 4 bytes, -1 for none; and each of them.
    Array(&'static [Field]),
    /// From this version on.
    Since(i16, &'static [Field]),
}

/// A kind of request.
///
/// All are spoken as before the "flexible" versions, with their lengths of varying length: every
/// client still speaks these, and they are half as long to describe.
pub(crate) struct Api {
    pub(crate) key: ApiKey,
    pub(crate) versions: RangeInclusive<i16>,
    /// What its body is made of.
    body: &'static [Field],
}

pub(crate) static APIS: [Api; 13] = [
    api(
        ApiKey::Produce,
        3..=8,
        &[Text, Fixed(6), Array(&[Text, Array(&[Fixed(4), Blob])])],
    ),
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
    api(
        ApiKey::Metadata,
        0..=7,
        &[Array(&[Text]), Since(4, &[Fixed(1)])],
    ),
    api(
        ApiKey::OffsetCommit,
        2..=4,
        &[
            Text,
            Fixed(4),
            Text,
            Fixed(8),
            Array(&[Text, Array(&[Fixed(12), Text])]),
        ],
    ),
    api(
        ApiKey::OffsetFetch,
        1..=5,
        &[Text, Array(&[Text, Array(&[Fixed(4)])])],
    ),
    api(
        ApiKey::FindCoordinator,
        0..=2,
        &[Text, Since(1, &[Fixed(1)])],
    ),
    api(
        ApiKey::JoinGroup,
        0..=3,
        &[
            Text,
            Fixed(4),
            Since(1, &[Fixed(4)]),
            Text,
            Text,
            Array(&[Text, Blob]),
        ],
    ),
    api(ApiKey::Heartbeat, 0..=2, &[Text, Fixed(4), Text]),
    api(ApiKey::LeaveGroup, 0..=2, &[Text, Text]),
    api(
        ApiKey::SyncGroup,
        0..=2,
        &[Text, Fixed(4), Text, Array(&[Text, Blob])],
    ),
    api(ApiKey::ApiVersions, 0..=2, &[]),
    api(ApiKey::InitProducerId, 0..=1, &[Text, Fixed(4)]),
];

const fn api(key: ApiKey, versions: RangeInclusive<i16>, body: &'static [Field]) -> Api {
    Api {
        key,
        versions,
        body,
    }
}

/// How many elements the arrays of a request may have, together. What is decoded takes far more
/// room than what was sent.
const MAX_ELEMENTS: usize = 20_000;

/// Checks that a body holds what it claims to hold, not too much, and nothing else. Returns `None`
/// if not.
///
/// `kafka-protocol` makes room for as many elements as an array claims to have: twelve bytes that
/// claim two billion would end the process. So a request is walked first, without allocating.
fn check(body: &[u8], version: i16, fields: &[Field]) -> Option<()> {
    let mut walk = Walk {
        rest: body,
        version,
        elements: 0,
    };
    walk.fields(fields)?;
    walk.rest.is_empty().then_some(())
}

struct Walk<'a> {
    rest: &'a [u8],
    version: i16,
    /// How many there were so far.
    elements: usize,
}

impl Walk<'_> {
    fn fields(&mut self, fields: &[Field]) -> Option<()> {
        fields.iter().try_for_each(|field| match field {
            Fixed(length) => self.skip(*length),
            Text => {
                let length = i16::from_be_bytes(self.take()?);
                self.skip(usize::try_from(length).unwrap_or(0))
            }
            Blob => {
                let length = self.length()?;
                self.skip(length)
            }
            Array(element) => {
                let count = self.length()?;
                self.elements = self.elements.saturating_add(count);
                if self.elements > MAX_ELEMENTS {
                    return None;
                }
                (0..count).try_for_each(|_| self.fields(element))
            }
            Since(first, fields) if self.version >= *first => self.fields(fields),
            Since(..) => Some(()),
        })
    }

    fn length(&mut self) -> Option<usize> {
        Some(usize::try_from(i32::from_be_bytes(self.take()?)).unwrap_or(0))
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.rest = self.rest.get(length..)?;
        Some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a body as it is described, with two elements in each array.
    fn write(frame: &mut BytesMut, version: i16, fields: &[Field]) {
        for field in fields {
            match field {
                Fixed(length) => frame.put_bytes(0, *length),
                Text => frame.put_slice(b"\0\x01x"),
                Blob => frame.put_slice(b"\0\0\0\x01x"),
                Array(element) => {
                    frame.put_i32(2);
                    (0..2).for_each(|_| write(frame, version, element));
                }
                Since(first, fields) if version >= *first => write(frame, version, fields),
                Since(..) => {}
            }
        }
    }

    /// Twelve bytes that claim two billion elements would take all memory.
    #[test]
    fn requests_are_as_described_in_each_version_and_no_count_in_one_is_believed() {
        for (api, version) in APIS
            .iter()
            .flat_map(|api| api.versions.clone().map(move |version| (api, version)))
        {
            let mut frame = BytesMut::new();
            frame.put_i16(api.key as i16);
            frame.put_i16(version);
            frame.put_slice(b"\0\0\0\x4d\xff\xff"); // The client has no name.
            let header = frame.len();
            write(&mut frame, version, api.body);
            let read = decode(frame.clone().freeze());
            let read = read.unwrap_or_else(|_| panic!("{:?} {version}", api.key));
            assert_eq!((read.version, read.correlation_id), (version, 77));
            // What kafka-protocol has read is all of it.
            let mut body = BytesMut::new();
            read.body.encode(&mut body, version).expect("a body");
            assert_eq!(frame[header..], body, "{:?} {version}", api.key);
            let shorter = Bytes::copy_from_slice(&frame[..frame.len() - 1]);
            let longer = Bytes::from([&frame[..], b"x"].concat());
            assert!(decode(longer).is_err() && decode(shorter).is_err());
            for place in header..frame.len().saturating_sub(3) {
                for claim in [i32::MAX, 1 << 24, 20_001] {
                    let mut frame = frame.clone();
                    frame[place..place + 4].copy_from_slice(&claim.to_be_bytes());
                    drop(decode(frame.freeze()));
                }
            }
        }
        let refused = decode(Bytes::from_static(b"\0\x12\0\x03\0\0\0\x4d\xff\xff"));
        assert_eq!(
            refused.expect_err("v3"),
            Malformed::Versions { correlation_id: 77 }
        );
    }
}
