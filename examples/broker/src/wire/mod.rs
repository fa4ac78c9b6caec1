//! The wire: requests and answers, from a frame and into one.

mod apis;
mod bounds;

pub(crate) use apis::{APIS, Api};

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, RequestKind, ResponseHeader, ResponseKind};
use kafka_protocol::protocol::{Decodable, Encodable};

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
    let RequestHeader { request_api_version: version, correlation_id, .. } = header;
    let api = APIS.iter().find(|api| api.key as i16 == header.request_api_key);
    let api = api.ok_or(Malformed::Other)?;
    if !api.versions.contains(&version) {
        return Err(match api.key {
            ApiKey::ApiVersions => Malformed::Versions { correlation_id },
            _ => Malformed::Other,
        });
    }
    bounds::check(&frame, version, api.body).ok_or(Malformed::Other)?;
    let body = RequestKind::decode(api.key, &mut frame, version).map_err(|_| Malformed::Other)?;
    Ok(Request { version, correlation_id, body })
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
