//! Requests and responses: from a frame, and into one.

use super::apis::Api;
use super::bounds;
use super::frame::Frame;
use crate::budget::Room;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, RequestHeader, RequestKind, ResponseHeader, ResponseKind,
};
use kafka_protocol::protocol::{Decodable, Encodable};
use std::fmt;

/// What a client asks for.
pub struct Request {
    pub api: &'static Api,
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: String,
    pub body: RequestKind,
    /// What it takes of the budget, as long as its frame is there.
    pub room: Option<Room>,
}

/// Why a frame is no request of ours.
#[derive(Debug)]
pub enum Malformed {
    /// Not even a key, a version and a correlation id.
    Short,
    UnknownApi(i16),
    /// To be told so, if the client only asks which versions there are.
    Version {
        key: ApiKey,
        version: i16,
        correlation_id: i32,
    },
    Body(ApiKey),
}

impl Request {
    pub fn decode(frame: Frame) -> Result<Self, Malformed> {
        let Frame { bytes: mut frame, room } = frame;
        let Some([k0, k1, v0, v1, c0, c1, c2, c3]) = frame.first_chunk().copied() else {
            return Err(Malformed::Short);
        };
        let (key, version) = (i16::from_be_bytes([k0, k1]), i16::from_be_bytes([v0, v1]));
        let correlation_id = i32::from_be_bytes([c0, c1, c2, c3]);
        let api = Api::find(key).ok_or(Malformed::UnknownApi(key))?;
        if !api.speaks(version) {
            return Err(Malformed::Version { key: api.key, version, correlation_id });
        }
        let malformed = || Malformed::Body(api.key);
        let header_version = api.key.request_header_version(version);
        let header = RequestHeader::decode(&mut frame, header_version).map_err(|_| malformed())?;
        bounds::check(&frame, version, header_version >= 2, api.body).ok_or_else(malformed)?;
        let body = RequestKind::decode(api.key, &mut frame, version).map_err(|_| malformed())?;
        let client_id = header.client_id.map(|id| id.to_string()).unwrap_or_default();
        Ok(Request { api, version, correlation_id, client_id, body, room })
    }
}

/// Returns whether a frame, without its length, is a request of ours: for the fuzzer.
pub fn is_request(frame: &[u8]) -> bool {
    Request::decode(Frame { bytes: Bytes::copy_from_slice(frame), room: None }).is_ok()
}

/// Encodes a frame with an answer, which will have about so many bytes.
pub fn encode_response(
    key: ApiKey,
    version: i16,
    correlation_id: i32,
    body: &ResponseKind,
    capacity: usize,
) -> Result<BytesMut, Box<dyn std::error::Error + Send + Sync>> {
    let mut frame = BytesMut::with_capacity(capacity);
    frame.put_i32(0);
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    header.encode(&mut frame, key.response_header_version(version))?;
    body.encode(&mut frame, version)?;
    let length = i32::try_from(frame.len() - 4)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

/// Encodes the answer to a client that asks for the versions in a version that is too new: in the
/// oldest one, which it understands for sure.
pub fn refuse_version(correlation_id: i32, versions: ApiVersionsResponse) -> Option<BytesMut> {
    let code = ResponseError::UnsupportedVersion.code();
    let body = ResponseKind::ApiVersions(versions.with_error_code(code));
    encode_response(ApiKey::ApiVersions, 0, correlation_id, &body, 0).ok()
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => f.write_str("a request of fewer than 8 bytes"),
            Malformed::UnknownApi(key) => write!(f, "a request of unknown kind {key}"),
            Malformed::Version { key, version, .. } => {
                write!(f, "{key:?} in version {version}, which is not spoken here")
            }
            Malformed::Body(key) => write!(f, "{key:?} that can't be read"),
        }
    }
}
