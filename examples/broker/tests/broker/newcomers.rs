//! New members of groups: they are given an id first, and are in when they come back with it.

use crate::client::{Client, text};
use crate::fixture::{Fixture, MS, NS};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{
    ApiKey, GroupId, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ResponseKind,
};
use kafka_protocol::protocol::StrBytes;
use tickwheel_broker::Waiting;

const UNKNOWN_MEMBER: i16 = 25;
const ID_REQUIRED: i16 = 79;
const GROUP_IS_FULL: i16 = 81;
const VERSION: i16 = 5;

fn group() -> GroupId {
    GroupId(text("readers"))
}

fn waiting(joins: usize, sessions: usize) -> Waiting {
    Waiting { joins, sessions, ..Waiting::default() }
}

fn send_join(client: &mut Client, id: &StrBytes) {
    let body = JoinGroupRequest::default()
        .with_group_id(group())
        .with_member_id(id.clone())
        .with_session_timeout_ms(10_000)
        .with_protocols(vec![JoinGroupRequestProtocol::default().with_name(text("range"))]);
    client.send(ApiKey::JoinGroup, VERSION, &body.into());
}

fn receive_joined(client: &mut Client) -> JoinGroupResponse {
    match client.receive(ApiKey::JoinGroup, VERSION) {
        ResponseKind::JoinGroup(response) => response,
        other => panic!("{other:?}"),
    }
}

/// Returns the id that a new member is given.
fn id_of(client: &mut Client) -> StrBytes {
    send_join(client, &StrBytes::new());
    let response = receive_joined(client);
    assert_eq!((response.error_code, response.generation_id), (ID_REQUIRED, -1));
    assert!(response.member_id.starts_with("test-"), "{:?}", response.member_id);
    response.member_id
}

#[test]
fn a_new_member_is_given_an_id_and_joins_with_it() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let id = id_of(&mut client);
    assert_eq!(fixture.broker.waiting(), waiting(0, 1));
    fixture.advance(9000 * MS);
    send_join(&mut client, &id);
    fixture.wait_for(waiting(1, 1));
    fixture.advance(100 * MS);
    let joined = receive_joined(&mut client);
    assert_eq!((joined.error_code, joined.generation_id, joined.member_id), (0, 1, id));
    // Its session began anew.
    fixture.advance(9000 * MS);
    assert_eq!(fixture.broker.waiting(), waiting(0, 1));
}

#[test]
fn an_id_that_nobody_comes_back_with_is_forgotten_at_the_session_timeout() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let id = id_of(&mut client);
    fixture.advance(10_000 * MS - NS);
    assert_eq!(fixture.broker.waiting(), waiting(0, 1));
    fixture.advance(NS);
    assert_eq!(fixture.broker.waiting(), Waiting::default());
    send_join(&mut client, &id);
    assert_eq!(receive_joined(&mut client).error_code, UNKNOWN_MEMBER);
}

#[test]
fn nobody_waits_for_who_is_only_expected_but_they_count() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let ids: Vec<StrBytes> = (0..10).map(|_| id_of(&mut client)).collect();
    send_join(&mut client, &StrBytes::new());
    assert_eq!(receive_joined(&mut client).error_code, GROUP_IS_FULL);
    send_join(&mut client, &ids[0]);
    fixture.wait_for(waiting(1, 10));
    fixture.advance(100 * MS);
    assert_eq!(receive_joined(&mut client).error_code, 0);
    // One that leaves before it has joined makes room.
    let member = MemberIdentity::default().with_member_id(ids[1].clone());
    let body = LeaveGroupRequest::default().with_group_id(group()).with_members(vec![member]);
    match client.call(ApiKey::LeaveGroup, 4, &body.into()) {
        ResponseKind::LeaveGroup(response) => assert_eq!(response.members[0].error_code, 0),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.broker.waiting(), waiting(0, 9));
    id_of(&mut client);
}
