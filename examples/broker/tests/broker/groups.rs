//! Groups: joins wait for all members, sessions end those who fall silent.

use crate::world::{Asked, NS, World, answered, batch, name, text};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use tickwheel_broker::Waiting;

const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER: i16 = 25;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const REBALANCING: i16 = 27;
const INVALID_REQUEST: i16 = 42;
const GROUP_IS_FULL: i16 = 81;

const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(30);
/// How long the first rebalance of a group waits.
const FIRST: Duration = Duration::from_millis(500);

fn waiting(joins: usize, sessions: usize) -> Waiting {
    Waiting { joins, sessions, ..Waiting::default() }
}

fn join_request(group: &str, member: &StrBytes, metadata: &[u8]) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
    let protocol = protocol.with_metadata(Bytes::copy_from_slice(metadata));
    JoinGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(member.clone())
        .with_session_timeout_ms(SESSION.as_millis() as i32)
        .with_rebalance_timeout_ms(REBALANCE.as_millis() as i32)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

fn joined(asked: Asked) -> JoinGroupResponse {
    answered!(JoinGroup, asked.answer())
}

/// A member of the group "readers".
struct Member<'a> {
    world: &'a World,
    id: StrBytes,
    generation: i32,
}

impl<'a> Member<'a> {
    fn join(&self) -> Asked {
        self.world.ask(3, join_request("readers", &self.id, b"topics"))
    }

    fn sync(&self, assignments: &[(&StrBytes, &'static [u8])]) -> Asked {
        let assigned = assignments.iter().map(|(id, assignment)| {
            let assigned = SyncGroupRequestAssignment::default().with_member_id((*id).clone());
            assigned.with_assignment(Bytes::from_static(assignment))
        });
        let body = SyncGroupRequest::default()
            .with_group_id(GroupId(text("readers")))
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation)
            .with_assignments(assigned.collect());
        self.world.ask(2, body)
    }

    fn heartbeat(&self) -> i16 {
        let body = HeartbeatRequest::default()
            .with_group_id(GroupId(text("readers")))
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation);
        answered!(Heartbeat, self.world.ask(2, body).answer()).error_code
    }

    fn leave(&self) -> i16 {
        let body = LeaveGroupRequest::default()
            .with_group_id(GroupId(text("readers")))
            .with_member_id(self.id.clone());
        answered!(LeaveGroup, self.world.ask(2, body).answer()).error_code
    }

    fn commit(&self, offset: i64) -> i16 {
        let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
        let topic = OffsetCommitRequestTopic::default().with_name(name("orders"));
        let body = OffsetCommitRequest::default()
            .with_group_id(GroupId(text("readers")))
            .with_member_id(self.id.clone())
            .with_generation_id_or_member_epoch(self.generation)
            .with_topics(vec![topic.with_partitions(vec![partition])]);
        let answer = answered!(OffsetCommit, self.world.ask(4, body).answer());
        answer.topics[0].partitions[0].error_code
    }
}

fn committed(world: &World) -> Vec<i64> {
    let body = OffsetFetchRequest::default().with_group_id(GroupId(text("readers")));
    let answer = answered!(OffsetFetch, world.ask(5, body.with_topics(None)).answer());
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.committed_offset).collect()
}

/// Two members of the first generation; the first is the leader.
fn two(world: &World) -> [Member<'_>; 2] {
    let new = || Member { world, id: StrBytes::new(), generation: -1 };
    let asked = [new().join(), new().join()];
    world.advance(FIRST);
    let mut joined = asked.map(joined);
    joined.sort_by_key(|answer| answer.leader != answer.member_id);
    assert_eq!([joined[0].members.len(), joined[1].members.len()], [2, 0]);
    joined.map(|answer| Member { world, id: answer.member_id, generation: answer.generation_id })
}

#[test]
fn the_first_rebalance_waits_for_those_who_come_soon_after() {
    let world = World::new();
    let new = Member { world: &world, id: StrBytes::new(), generation: -1 };
    let mut first = new.join();
    world.advance(FIRST - NS);
    let second = new.join();
    assert!(!first.is_answered());
    assert_eq!(world.broker.waiting(), waiting(1, 2));
    world.advance(NS);
    assert_eq!((joined(first).generation_id, joined(second).generation_id), (1, 1));
    assert_eq!(world.broker.waiting(), waiting(0, 2));
}

#[test]
fn members_wait_for_what_the_leader_assigns() {
    let world = World::new();
    let [leader, other] = two(&world);
    let mut waits = other.sync(&[]);
    assert!(!waits.is_answered());
    let leaders = leader.sync(&[(&leader.id, b"left"), (&other.id, b"right")]);
    assert_eq!(answered!(SyncGroup, leaders.answer()).assignment, "left");
    assert_eq!(answered!(SyncGroup, waits.answer()).assignment, "right");
    assert_eq!(answered!(SyncGroup, other.sync(&[]).answer()).assignment, "right");
}

#[test]
fn a_member_that_falls_silent_is_gone_at_its_session_timeout_and_not_before() {
    let world = World::new();
    let [mut first, second] = two(&world);
    world.advance(SESSION / 2);
    assert_eq!(first.heartbeat(), 0);
    world.advance(SESSION / 2 - NS);
    assert_eq!(world.broker.waiting(), waiting(0, 2));
    world.advance(NS);
    assert_eq!(world.broker.waiting(), waiting(1, 1)); // The other one has to join again.
    assert_eq!(second.heartbeat(), UNKNOWN_MEMBER);
    assert_eq!(first.heartbeat(), REBALANCING);
    let answer = joined(first.join());
    assert_eq!((answer.error_code, answer.generation_id, answer.members.len()), (0, 2, 1));
    assert_eq!(first.heartbeat(), ILLEGAL_GENERATION);
    first.generation = 2;
    assert_eq!(first.heartbeat(), 0);
}

#[test]
fn a_rebalance_waits_for_those_who_do_not_join_until_their_time_is_up() {
    let world = World::new();
    let [first, second] = two(&world);
    let waits = second.sync(&[]);
    let third = Member { world: &world, id: StrBytes::new(), generation: -1 }.join();
    let code = answered!(SyncGroup, waits.answer()).error_code;
    assert_eq!(code, REBALANCING, "there will be no assignment any more");
    let again = first.join();
    for _ in 0..4 {
        world.advance(REBALANCE / 4 - NS);
        assert_eq!(second.heartbeat(), REBALANCING); // It beats, but never joins.
        assert_eq!(world.broker.waiting(), waiting(1, 3));
    }
    world.advance(4 * NS);
    assert_eq!((joined(again).error_code, joined(third).error_code), (0, 0));
    assert_eq!(second.heartbeat(), UNKNOWN_MEMBER);
    assert_eq!(world.broker.waiting(), waiting(0, 2));
}

#[test]
fn a_member_that_leaves_is_gone_at_once() {
    let world = World::new();
    let [first, second] = two(&world);
    assert_eq!((second.leave(), second.leave()), (0, UNKNOWN_MEMBER));
    assert_eq!(world.broker.waiting(), waiting(1, 1));
    assert_eq!(joined(first.join()).generation_id, 2);
    assert_eq!(first.leave(), 0);
    assert_eq!(world.broker.waiting(), Waiting::default());
    assert!(world.timer.is_empty());
}

#[test]
fn whoever_waits_for_the_others_does_not_expire() {
    let world = World::new();
    let [first, _] = two(&world);
    let again = first.join();
    world.advance(SESSION); // Of both.
    assert_eq!(joined(again).generation_id, 2);
    assert_eq!(world.broker.waiting(), waiting(0, 1));
}

#[test]
fn whoever_has_gone_while_it_waited_for_the_others_is_out() {
    let world = World::new();
    let [first, second] = two(&world);
    drop(first.join());
    let answer = joined(second.join());
    assert_eq!((answer.generation_id, answer.members.len()), (2, 1));
    assert_eq!(world.broker.waiting(), waiting(0, 1));
}

#[test]
fn offsets_are_committed_by_members_only() {
    let world = World::new();
    world.create("orders");
    let mut stranger = Member { world: &world, id: StrBytes::new(), generation: -1 };
    assert_eq!(stranger.commit(5), 0); // Nobody is in: this is somebody who assigns by hand.
    let [mut first, _] = two(&world);
    assert_eq!(stranger.commit(6), UNKNOWN_MEMBER);
    assert_eq!(first.commit(7), 0);
    first.generation -= 1;
    assert_eq!(first.commit(8), ILLEGAL_GENERATION);
    stranger.generation = 0;
    assert_eq!(committed(&world), [7]);
}

#[test]
fn a_shutdown_answers_those_who_wait() {
    let world = World::new();
    let join = Member { world: &world, id: StrBytes::new(), generation: -1 }.join();
    world.broker.shutdown();
    assert_eq!(joined(join).error_code, COORDINATOR_NOT_AVAILABLE);
    assert_eq!(world.broker.waiting(), Waiting::default());
}

/// One budget held all that clients brought along, so 84 that joined with three MiB each, and were
/// gone, left no room for anybody's requests.
#[test]
fn what_members_bring_along_is_limited_apart_from_requests() {
    let world = World::new();
    world.create("orders");
    let new = StrBytes::new();
    let join = |group: String, size| world.ask(3, join_request(&group, &new, &vec![b'x'; size]));
    for number in 0..84 {
        let refused = join(format!("g{number}"), 3 << 20);
        assert_eq!(joined(refused).error_code, INVALID_REQUEST);
    }
    // Those who bring what may be brought join, and then stay silent.
    let gone: Vec<Asked> = (0..1000).map(|n| join(format!("g{}", n % 100), 60 << 10)).collect();
    world.advance(FIRST);
    drop(gone);
    assert_eq!(joined(join("late".to_owned(), 1)).error_code, GROUP_IS_FULL);
    assert_eq!(world.append("orders", batch(&vec![0; 1_000_000])), (0, 0));
    assert_eq!(world.fetch("orders", 0, 1).fetched().0, 0);
    world.advance(SESSION); // All are out, at the same time.
    world.advance(REBALANCE);
    assert_eq!(world.broker.waiting(), Waiting::default());
    let late = join("late".to_owned(), 1);
    world.advance(FIRST);
    assert_eq!(joined(late).error_code, 0);
}

#[test]
fn a_group_without_members_is_forgotten_for_a_new_one() {
    let world = World::new();
    world.create("orders");
    let reader = Member { world: &world, id: StrBytes::new(), generation: -1 };
    assert_eq!(reader.commit(5), 0);
    let new = StrBytes::new();
    let join = |number| world.ask(3, join_request(&format!("g{number}"), &new, b""));
    let asked: Vec<Asked> = (0..199).map(join).collect();
    assert_eq!(committed(&world), [5]);
    let last = join(199); // Readers have no members.
    assert!(committed(&world).is_empty());
    assert_eq!(joined(join(200)).error_code, COORDINATOR_NOT_AVAILABLE);
    world.advance(FIRST);
    asked.into_iter().chain([last]).for_each(|asked| assert_eq!(joined(asked).error_code, 0));
}

#[test]
fn a_session_timeout_that_makes_no_sense_is_refused() {
    let world = World::new();
    for timeout in [-1, 0, 99, 300_001, i32::MAX] {
        let join = join_request("readers", &StrBytes::new(), b"").with_session_timeout_ms(timeout);
        assert_eq!(joined(world.ask(3, join)).error_code, INVALID_SESSION_TIMEOUT, "{timeout}");
    }
    assert!(world.timer.is_empty());
}
