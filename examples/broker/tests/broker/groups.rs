//! Groups: joins wait for all members, sessions end those who fall silent.

use crate::world::*;
use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use tickwheel_broker::Waiting;

const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER: i16 = 25;
const REBALANCING: i16 = 27;
const INVALID_REQUEST: i16 = 42;
const GROUP_IS_FULL: i16 = 81;

const SESSION: Duration = Duration::from_millis(SESSION_MS as u64);
const SESSION_MS: i32 = 10_000;
const REBALANCE: Duration = Duration::from_millis(REBALANCE_MS as u64);
const REBALANCE_MS: i32 = 30_000;
/// How long the first rebalance of a group waits.
const FIRST: Duration = Duration::from_millis(500);

fn waiting(joins: usize, sessions: usize) -> Waiting {
    Waiting { joins, sessions, ..Waiting::default() }
}

fn readers() -> GroupId {
    GroupId(text("readers"))
}

fn join_request(name: &str, member: &StrBytes, metadata: Vec<u8>) -> JoinGroupRequest {
    with!(JoinGroupRequest {
        group_id: GroupId(text(name)),
        member_id: member.clone(),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: REBALANCE_MS,
        protocols: vec![with!(JoinGroupRequestProtocol { metadata: metadata.into() })],
    })
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
    fn new(world: &'a World) -> Self {
        Member { world, id: StrBytes::new(), generation: -1 }
    }

    fn join(&self) -> Asked {
        self.world.ask(3, join_request("readers", &self.id, Vec::new()))
    }

    /// Assigns to each of these members its own id.
    fn sync(&self, members: &[&Member<'_>]) -> Asked {
        let assigned = members.iter().map(|Member { id, .. }| {
            let assignment = Bytes::copy_from_slice(id.as_bytes());
            with!(SyncGroupRequestAssignment { member_id: id.clone(), assignment: assignment })
        });
        let assignments = assigned.collect();
        let body = with!(SyncGroupRequest { group_id: readers(), assignments: assignments });
        let body = body.with_member_id(self.id.clone()).with_generation_id(self.generation);
        self.world.ask(2, body)
    }

    fn heartbeat(&self) -> i16 {
        let body = with!(HeartbeatRequest { group_id: readers(), member_id: self.id.clone() });
        let asked = self.world.ask(2, body.with_generation_id(self.generation));
        answered!(Heartbeat, asked.answer()).error_code
    }

    fn leave(&self) -> i16 {
        let body = with!(LeaveGroupRequest { group_id: readers(), member_id: self.id.clone() });
        answered!(LeaveGroup, self.world.ask(2, body).answer()).error_code
    }

    fn commit(&self, offset: i64) -> i16 {
        let partitions = vec![with!(OffsetCommitRequestPartition { committed_offset: offset })];
        let topic = OffsetCommitRequestTopic::default().with_name(name("orders"));
        let topics = vec![topic.with_partitions(partitions)];
        let body = with!(OffsetCommitRequest { group_id: readers(), topics: topics });
        let body = body.with_member_id(self.id.clone());
        let asked = self.world.ask(4, body.with_generation_id_or_member_epoch(self.generation));
        answered!(OffsetCommit, asked.answer()).topics[0].partitions[0].error_code
    }
}

fn committed(world: &World) -> Vec<i64> {
    let body = with!(OffsetFetchRequest { group_id: readers(), topics: None });
    let answer = answered!(OffsetFetch, world.ask(5, body).answer());
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.committed_offset).collect()
}

/// Two members of the first generation; the first is the leader.
fn two(world: &World) -> [Member<'_>; 2] {
    let asked = [Member::new(world).join(), Member::new(world).join()];
    world.advance(FIRST);
    let mut joined = asked.map(joined);
    joined.sort_by_key(|answer| answer.leader != answer.member_id);
    assert_eq!([joined[0].members.len(), joined[1].members.len()], [2, 0]);
    joined.map(|answer| Member { world, id: answer.member_id, generation: answer.generation_id })
}

#[test]
fn the_first_rebalance_waits_for_those_who_come_soon_after() {
    let world = World::new();
    let new = Member::new(&world);
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
    let leaders = leader.sync(&[&leader, &other]);
    assert_eq!(answered!(SyncGroup, leaders.answer()).assignment, leader.id.as_bytes());
    assert_eq!(answered!(SyncGroup, waits.answer()).assignment, other.id.as_bytes());
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
    let third = Member::new(&world).join();
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
fn whoever_waits_for_the_others_does_not_expire_but_whoever_has_gone_meanwhile_is_out() {
    let world = World::new();
    let [mut first, second] = two(&world);
    drop(second.join());
    assert_eq!((joined(first.join()).generation_id, second.heartbeat()), (2, UNKNOWN_MEMBER));
    first.generation = 2;
    let third = Member::new(&world).join();
    world.advance(SESSION / 2);
    assert_eq!(first.heartbeat(), REBALANCING);
    world.advance(SESSION / 2); // The third's time would be up.
    assert_eq!(world.broker.waiting(), waiting(1, 2));
    world.advance(SESSION / 2);
    assert_eq!((joined(third).generation_id, first.heartbeat()), (3, UNKNOWN_MEMBER));
}

#[test]
fn offsets_are_committed_by_members_only() {
    let world = World::new();
    world.create("orders");
    let mut stranger = Member::new(&world);
    assert_eq!(stranger.commit(5), 0); // Nobody is in: this is somebody who assigns by hand.
    let [mut first, _] = two(&world);
    assert_eq!(stranger.commit(6), UNKNOWN_MEMBER);
    assert_eq!(first.commit(7), 0);
    first.generation -= 1;
    assert_eq!(first.commit(8), ILLEGAL_GENERATION);
    stranger.generation = 0;
    assert_eq!(committed(&world), [7]);
}

/// One budget held all that clients brought along, so 84 that joined with three MiB each, and were
/// gone, left no room for anybody's requests.
#[test]
fn what_members_bring_along_is_limited_apart_from_requests() {
    let world = World::new();
    world.create("orders");
    let new = StrBytes::new();
    let join = |group: String, size| world.ask(3, join_request(&group, &new, vec![b'x'; size]));
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
    let reader = Member::new(&world);
    assert_eq!(reader.commit(5), 0);
    let new = StrBytes::new();
    let join = |number| world.ask(3, join_request(&format!("g{number}"), &new, Vec::new()));
    let asked: Vec<Asked> = (0..199).map(join).collect();
    assert_eq!(committed(&world), [5]);
    let last = join(199); // Readers have no members.
    assert!(committed(&world).is_empty());
    assert_eq!(joined(join(200)).error_code, COORDINATOR_NOT_AVAILABLE);
    world.advance(FIRST);
    asked.into_iter().chain([last]).for_each(|asked| assert_eq!(joined(asked).error_code, 0));
}

/// The delayed join of the one before came to the one after, and found that nobody had joined.
#[test]
fn a_group_is_left_alone_by_a_forgotten_one_of_the_same_name() {
    let world = World::new();
    let join = |name: &str, session: Duration| {
        let request = join_request(name, &StrBytes::new(), Vec::new());
        world.ask(3, request.with_session_timeout_ms(session.as_millis() as i32))
    };
    let (brief, step) = (FIRST / 5, FIRST / 5);
    drop(join("readers", brief));
    world.advance(step); // Its only member has gone, and its first rebalance waits.
    let _others: Vec<Asked> = (0..199).map(|n| join(&format!("g{n}"), SESSION)).collect();
    drop(join("last", brief)); // Readers are forgotten.
    world.advance(step);
    let reader = join("readers", SESSION); // And the last one for these.
    world.advance(FIRST);
    assert_eq!(joined(reader).error_code, 0);
    world.advance(FIRST);
    assert_eq!(world.broker.waiting(), waiting(0, 200));
}
