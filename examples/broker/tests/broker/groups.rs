//! Consumer groups: who is in, who gets what, and who is gone.

use crate::client::{Client, name, text};
use crate::fixture::{Fixture, MS, NS, eventually};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ApiKey, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    OffsetCommitRequest, OffsetFetchRequest, ResponseKind, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use tickwheel_broker::Waiting;

const SESSION: Duration = Duration::from_secs(10);
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER: i16 = 25;
const REBALANCING: i16 = 27;
const INVALID_SESSION_TIMEOUT: i16 = 26;

fn waiting(joins: usize, sessions: usize) -> Waiting {
    Waiting { joins, sessions, ..Waiting::default() }
}

fn group() -> GroupId {
    GroupId(text("readers"))
}

/// A member and what it knows.
struct Member {
    client: Client,
    id: StrBytes,
    generation: i32,
}

impl Member {
    fn new(fixture: &Fixture) -> Self {
        Member { client: fixture.client(), id: StrBytes::new(), generation: -1 }
    }

    fn send_join(&mut self) {
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
        let body = JoinGroupRequest::default()
            .with_group_id(group())
            .with_member_id(self.id.clone())
            .with_session_timeout_ms(SESSION.as_millis() as i32)
            .with_rebalance_timeout_ms(30_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol.with_metadata(Bytes::from_static(b"topics"))]);
        self.client.send(ApiKey::JoinGroup, 3, &body.into());
    }

    fn receive_joined(&mut self) -> JoinGroupResponse {
        match self.client.receive(ApiKey::JoinGroup, 3) {
            ResponseKind::JoinGroup(response) => {
                self.id = response.member_id.clone();
                self.generation = response.generation_id;
                response
            }
            other => panic!("{other:?}"),
        }
    }

    fn send_sync(&mut self, assignments: &[(&StrBytes, &'static [u8])]) {
        let assignment = |(id, bytes): &(&StrBytes, &'static [u8])| {
            let assignment = SyncGroupRequestAssignment::default().with_member_id((*id).clone());
            assignment.with_assignment(Bytes::from_static(bytes))
        };
        let body = SyncGroupRequest::default()
            .with_group_id(group())
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation)
            .with_assignments(assignments.iter().map(assignment).collect());
        self.client.send(ApiKey::SyncGroup, 2, &body.into());
    }

    fn receive_synced(&mut self) -> (i16, Bytes) {
        match self.client.receive(ApiKey::SyncGroup, 2) {
            ResponseKind::SyncGroup(response) => (response.error_code, response.assignment),
            other => panic!("{other:?}"),
        }
    }

    fn heartbeat(&mut self) -> i16 {
        let body = HeartbeatRequest::default()
            .with_group_id(group())
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation);
        match self.client.call(ApiKey::Heartbeat, 2, &body.into()) {
            ResponseKind::Heartbeat(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self) -> i16 {
        let body = LeaveGroupRequest::default().with_group_id(group());
        let body = body.with_member_id(self.id.clone());
        match self.client.call(ApiKey::LeaveGroup, 2, &body.into()) {
            ResponseKind::LeaveGroup(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, offset: i64) -> i16 {
        let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
        let topic = OffsetCommitRequestTopic::default().with_name(name("orders"));
        let body = OffsetCommitRequest::default()
            .with_group_id(group())
            .with_member_id(self.id.clone())
            .with_generation_id_or_member_epoch(self.generation)
            .with_topics(vec![topic.with_partitions(vec![partition])]);
        match self.client.call(ApiKey::OffsetCommit, 6, &body.into()) {
            ResponseKind::OffsetCommit(response) => response.topics[0].partitions[0].error_code,
            other => panic!("{other:?}"),
        }
    }

    fn committed(&mut self) -> Vec<i64> {
        let body = OffsetFetchRequest::default().with_group_id(group()).with_topics(None);
        match self.client.call(ApiKey::OffsetFetch, 5, &body.into()) {
            ResponseKind::OffsetFetch(response) => {
                let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
                partitions.map(|partition| partition.committed_offset).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Returns two members that have their assignments; the first one leads.
fn two(fixture: &Fixture) -> [Member; 2] {
    let mut members = [Member::new(fixture), Member::new(fixture)];
    members[0].send_join();
    fixture.wait_for(waiting(1, 1));
    members[1].send_join();
    fixture.wait_for(waiting(1, 2));
    fixture.advance(100 * MS); // The first rebalance waits so long for members.
    let joined = members.each_mut().map(Member::receive_joined);
    let leads = |place: usize| joined[place].leader == joined[place].member_id;
    if leads(1) {
        members.swap(0, 1);
    }
    assert_eq!(joined.iter().map(|joined| joined.members.len()).sum::<usize>(), 2);
    let ids = members.each_ref().map(|member| member.id.clone());
    members[1].send_sync(&[]);
    members[0].send_sync(&[(&ids[0], b"left"), (&ids[1], b"right")]);
    assert_eq!(members[0].receive_synced(), (0, Bytes::from_static(b"left")));
    assert_eq!(members[1].receive_synced(), (0, Bytes::from_static(b"right")));
    members
}

#[test]
fn members_share_what_their_leader_assigns() {
    let fixture = Fixture::new();
    let [mut first, mut second] = two(&fixture);
    assert_eq!((first.heartbeat(), second.heartbeat()), (0, 0));
    first.generation += 1;
    assert_eq!(first.heartbeat(), ILLEGAL_GENERATION);
    first.id = text("nobody");
    assert_eq!(first.heartbeat(), UNKNOWN_MEMBER);
    assert_eq!(fixture.broker.waiting(), waiting(0, 2));
}

#[test]
fn a_member_that_falls_silent_is_gone_at_its_session_timeout_and_not_before() {
    let fixture = Fixture::new();
    let [mut first, mut second] = two(&fixture);
    fixture.advance(SESSION / 2);
    assert_eq!(first.heartbeat(), 0);
    fixture.advance(SESSION / 2 - NS);
    assert_eq!(fixture.broker.waiting(), waiting(0, 2));
    fixture.advance(NS);
    assert_eq!(fixture.broker.waiting(), waiting(1, 1)); // The other one has to join again.
    assert_eq!(second.heartbeat(), UNKNOWN_MEMBER);
    assert_eq!(first.heartbeat(), REBALANCING);
    first.send_join();
    let joined = first.receive_joined();
    assert_eq!((joined.error_code, joined.generation_id, joined.members.len()), (0, 2, 1));
    assert_eq!(fixture.broker.waiting(), waiting(0, 1));
}

#[test]
fn a_rebalance_waits_for_those_who_do_not_join_until_their_time_is_up() {
    let fixture = Fixture::new();
    let [mut first, mut second] = two(&fixture);
    let mut third = Member::new(&fixture);
    third.send_join();
    fixture.wait_for(waiting(1, 3));
    first.send_join();
    // Three sessions, the join, and the second one's connection: the others' are busy.
    eventually(|| fixture.timers() == 5, || format!("{} timers", fixture.timers()));
    // The second one beats, but never joins: 30 seconds are its rebalance timeout.
    for _ in 0..5 {
        fixture.advance(6 * Duration::from_secs(1) - NS);
        assert_eq!(second.heartbeat(), REBALANCING);
        assert_eq!(fixture.broker.waiting(), waiting(1, 3));
    }
    fixture.advance(5 * NS);
    assert_eq!(first.receive_joined().error_code, 0);
    assert_eq!(third.receive_joined().error_code, 0);
    assert_eq!(second.heartbeat(), UNKNOWN_MEMBER);
    assert_eq!(fixture.broker.waiting(), waiting(0, 2));
}

#[test]
fn a_member_that_leaves_is_gone_at_once() {
    let fixture = Fixture::new();
    let [mut first, mut second] = two(&fixture);
    assert_eq!(second.leave(), 0);
    assert_eq!(second.leave(), UNKNOWN_MEMBER);
    assert_eq!(fixture.broker.waiting(), waiting(1, 1));
    first.send_join();
    assert_eq!(first.receive_joined().generation_id, 2);
    assert_eq!(first.leave(), 0);
    // An empty group has an empty rebalance, and nothing of it waits.
    assert_eq!(fixture.broker.waiting(), waiting(0, 0));
    // What is left is one for each of the two connections.
    eventually(|| fixture.timers() == 2, || format!("{} timers", fixture.timers()));
}

#[test]
fn who_waits_for_the_others_does_not_expire_but_who_has_gone_meanwhile_does() {
    let fixture = Fixture::new();
    let [mut first, second] = two(&fixture);
    drop(second);
    first.send_join(); // Its leader may ask for a rebalance.
    fixture.wait_for(waiting(1, 2));
    fixture.advance(SESSION); // Of both.
    assert_eq!(first.receive_joined().generation_id, 2);
    assert_eq!(fixture.broker.waiting(), waiting(0, 1));
}

#[test]
fn offsets_are_committed_by_members_only() {
    let fixture = Fixture::new();
    fixture.client().create("orders");
    let mut stranger = Member::new(&fixture);
    assert_eq!(stranger.commit(5), 0); // Nobody is in: this is somebody who assigns by hand.
    let [mut first, _second] = two(&fixture);
    assert_eq!(stranger.commit(6), UNKNOWN_MEMBER);
    assert_eq!(first.commit(7), 0);
    first.generation -= 1;
    assert_eq!(first.commit(8), ILLEGAL_GENERATION);
    assert_eq!(first.committed(), [7]);
}

#[test]
fn a_session_timeout_that_makes_no_sense_is_refused() {
    let fixture = Fixture::new();
    let mut member = Member::new(&fixture);
    let body = JoinGroupRequest::default().with_group_id(group()).with_session_timeout_ms(i32::MAX);
    member.client.send(ApiKey::JoinGroup, 3, &body.into());
    assert_eq!(member.receive_joined().error_code, INVALID_SESSION_TIMEOUT);
    assert_eq!(fixture.broker.waiting(), Waiting::default());
}
