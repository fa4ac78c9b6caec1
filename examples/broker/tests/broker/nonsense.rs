//! Nonsense: whatever comes in, there is an answer or the connection is closed; nothing is left
//! behind, and others are served.

use crate::client::{Client, batch, encoded, framed};
use crate::fixture::Fixture;
use crate::versions::{ALL, full};
use bytes::BytesMut;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, RequestKind, ResponseHeader,
};
use kafka_protocol::protocol::Decodable;
use std::io::Write;
use std::net::Shutdown;
use tickwheel_broker::Waiting;

/// Returns one request of each kind, each in its newest version.
fn requests() -> Vec<(ApiKey, i16, RequestKind)> {
    ALL.iter().map(|(key, _, newest)| (*key, *newest, full(*key, *newest))).collect()
}

/// Sends bytes and no more, and reads until the broker has closed.
fn throw(fixture: &Fixture, bytes: &[u8]) -> usize {
    let mut client = fixture.client();
    let mut answers = 0;
    if client.stream.write_all(bytes).is_ok() {
        let _ = client.stream.shutdown(Shutdown::Write); // Fails if it is closed already.
        while client.frame().is_some() {
            answers += 1;
        }
    }
    answers
}

fn assert_well(fixture: &Fixture) {
    fixture.wait_for_end_of_connections();
    fixture.wait_for(Waiting::default());
    let mut client = fixture.client();
    client.create("good");
    let (code, _) = client.produce("good", batch(1, b"still here"));
    assert_eq!(code, 0);
    drop(client);
    fixture.wait_for_end_of_connections();
    assert_eq!(fixture.timers(), 0);
}

#[test]
fn lengths_that_make_no_sense_close_the_connection() {
    let fixture = Fixture::new();
    for length in [-1, i32::MIN, 0, 7, (1 << 20) + 1, i32::MAX] {
        // It is closed though more may come: nobody waits for what is claimed.
        let mut client = fixture.client();
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend([0; 7]);
        client.stream.write_all(&bytes).expect("an open connection");
        assert_eq!(client.frame(), None, "{length}");
    }
    assert_well(&fixture);
}

#[test]
fn half_a_frame_closes_the_connection() {
    let fixture = Fixture::new();
    for (key, version, body) in requests() {
        let whole = framed(&encoded(key, version, &body));
        for length in 1..whole.len() {
            assert_eq!(throw(&fixture, &whole[..length]), 0, "{key:?} {length}");
        }
        assert_eq!(throw(&fixture, &whole), 1, "{key:?}");
    }
    assert_well(&fixture);
}

#[test]
fn unknown_kinds_and_versions_close_the_connection() {
    let fixture = Fixture::new();
    for (key, newest, body) in requests() {
        let whole = encoded(key, newest, &body);
        for (place, value) in [(0, -1), (0, 999), (2, -1), (2, i16::MAX), (2, newest + 1)] {
            let mut bad = BytesMut::from(&whole[..]);
            bad[place..place + 2].copy_from_slice(&i16::to_be_bytes(value));
            let expected = usize::from(key == ApiKey::ApiVersions && place == 2);
            assert_eq!(throw(&fixture, &framed(&bad)), expected, "{key:?} {place} {value}");
        }
    }
    assert_well(&fixture);
}

#[test]
fn who_asks_for_the_versions_in_a_version_too_new_is_told_them_in_the_oldest() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let mut new = encoded(ApiKey::ApiVersions, 4, &ApiVersionsRequest::default().into());
    new[3] = 5;
    client.stream.write_all(&framed(&new)).expect("an open connection");
    let mut frame = bytes::Bytes::from(client.frame().expect("an answer"));
    ResponseHeader::decode(&mut frame, 0).expect("a header");
    let versions = ApiVersionsResponse::decode(&mut frame, 0).expect("a body");
    assert_eq!((versions.error_code, versions.api_keys.len()), (35, ALL.len()));
    client.create("good"); // The connection goes on.
}

/// The same noise in each run.
#[test]
fn noise_does_no_harm() {
    let fixture = Fixture::new();
    let mut noise = 1_u64;
    let mut next = |end: usize| {
        noise =
            noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (noise >> 33) as usize % end
    };
    let requests = requests();
    for _ in 0..2000 {
        let (key, version, body) = &requests[next(requests.len())];
        let mut bad = encoded(*key, *version, body);
        for _ in 0..=next(4) {
            let place = next(bad.len());
            bad[place] = next(256) as u8;
        }
        let length = next(bad.len()) + 1;
        bad.truncate(if next(2) == 0 { length } else { bad.len() });
        throw(&fixture, &framed(&bad));
    }
    fixture.wait_for_end_of_connections();
    let mut client: Client = fixture.client();
    client.create("good");
}
