//! Groups: joins wait for all members, sessions end those who fall silent.

use crate::world::*;
use kafka_protocol::ResponseError::*;
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use tickwheel_broker::Waiting;

const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(30);
/// How long the first rebalance of a group waits.
const FIRST: Duration = Duration::from_millis(500);

fn waiting(joins: usize, sessions: usize) -> Waiting {
    Waiting {
        joins,
        sessions,
        ..Waiting::default()
    }
}

fn readers() -> GroupId {
    GroupId(text("readers"))
}

fn join(group: &str, member: &StrBytes, metadata: Vec<u8>) -> JoinGroupRequest {
    with!(JoinGroupRequest {
        group_id: GroupId(text(group)),
        member_id: member.clone(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 30_000,
        protocols: vec![with!(JoinGroupRequestProtocol {
            metadata: metadata.into()
        })],
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
        Member {
            world,
            id: StrBytes::new(),
            generation: -1,
        }
    }

    fn join(&self) -> Asked {
        self.world.ask(3, join("readers", &self.id, Vec::new()))
    }

    fn sync(&self) -> Asked {
        let body = with!(SyncGroupRequest {
            group_id: readers(),
            member_id: self.id.clone()
        });
        self.world.ask(2, body.with_generation_id(self.generation))
    }

    fn heartbeat(&self) -> i16 {
        let body = with!(HeartbeatRequest {
            group_id: readers(),
            member_id: self.id.clone()
        });
        let asked = self.world.ask(2, body.with_generation_id(self.generation));
        answered!(Heartbeat, asked.answer()).error_code
    }

    fn commit(&self, offset: i64) -> i16 {
        let partitions = vec![with!(OffsetCommitRequestPartition {
            committed_offset: offset
        })];
        let topic = OffsetCommitRequestTopic::default().with_name(name("orders"));
        let topics = vec![topic.with_partitions(partitions)];
        let body = with!(OffsetCommitRequest {
            group_id: readers(),
            topics: topics
        });
        let body = body.with_member_id(self.id.clone());
        let asked = self
            .world
            .ask(4, body.with_generation_id_or_member_epoch(self.generation));
        answered!(OffsetCommit, asked.answer()).topics[0].partitions[0].error_code
    }
}

fn committed(world: &World) -> Vec<i64> {
    let body = with!(OffsetFetchRequest {
        group_id: readers(),
        topics: None
    });
    let answer = answered!(OffsetFetch, world.ask(5, body).answer());
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    partitions
        .map(|partition| partition.committed_offset)
        .collect()
}

/// Two members of the first generation; the first is the leader.
fn two(world: &World) -> [Member<'_>; 2] {
    let mut asked = [Member::new(world).join(), Member::new(world).join()];
    world.advance(FIRST - NS);
    assert!(!asked[0].is_answered(), "others may come soon after");
    world.advance(NS);
    let mut joined = asked.map(joined);
    joined.sort_by_key(|answer| answer.leader != answer.member_id);
    assert_eq!([joined[0].members.len(), joined[1].members.len()], [2, 0]);
    joined.map(|answer| Member {
        world,
        id: answer.member_id,
        generation: answer.generation_id,
    })
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
    assert_eq!(second.heartbeat(), UnknownMemberId.code());
    assert_eq!(first.heartbeat(), RebalanceInProgress.code());
    let answer = joined(first.join());
    assert_eq!(
        (
            answer.error_code,
            answer.generation_id,
            answer.members.len()
        ),
        (0, 2, 1)
    );
    assert_eq!(first.heartbeat(), IllegalGeneration.code());
    first.generation = 2;
    assert_eq!(first.heartbeat(), 0);
}

#[test]
fn a_rebalance_waits_for_those_who_do_not_join_until_their_time_is_up() {
    let world = World::new();
    let [first, second] = two(&world);
    let waits = second.sync();
    world.advance(SESSION / 2);
    let third = Member::new(&world).join(); // Which begins the second's session anew.
    let code = answered!(SyncGroup, waits.answer()).error_code;
    assert_eq!(
        code,
        RebalanceInProgress.code(),
        "there will be no assignment any more"
    );
    let again = first.join();
    for _ in 0..4 {
        world.advance(REBALANCE / 4 - NS);
        assert_eq!(second.heartbeat(), RebalanceInProgress.code()); // It beats, but never joins.
        assert_eq!(world.broker.waiting(), waiting(1, 3));
    }
    world.advance(4 * NS);
    assert_eq!((joined(again).error_code, joined(third).error_code), (0, 0));
    assert_eq!(second.heartbeat(), UnknownMemberId.code());
    assert_eq!(world.broker.waiting(), waiting(0, 2));
}

#[test]
fn whoever_waits_for_the_others_does_not_expire_but_whoever_has_gone_meanwhile_is_out() {
    let world = World::new();
    let [mut first, second] = two(&world);
    drop(second.join());
    assert_eq!(
        (joined(first.join()).generation_id, second.heartbeat()),
        (2, UnknownMemberId.code())
    );
    first.generation = 2;
    let third = Member::new(&world).join();
    world.advance(SESSION / 2);
    assert_eq!(first.heartbeat(), RebalanceInProgress.code());
    world.advance(SESSION / 2); // The third's time would be up.
    assert_eq!(world.broker.waiting(), waiting(1, 2));
    world.advance(SESSION / 2);
    assert_eq!(
        (joined(third).generation_id, first.heartbeat()),
        (3, UnknownMemberId.code())
    );
}

#[test]
fn a_session_begins_anew_when_a_member_has_its_assignment() {
    let world = World::new();
    let [leader, follower] = two(&world);
    let waits = follower.sync();
    world.advance(SESSION - MS);
    for asked in [leader.sync(), waits] {
        assert_eq!(answered!(SyncGroup, asked.answer()).error_code, 0);
    }
    world.advance(SESSION - MS);
    assert_eq!(world.broker.waiting(), waiting(0, 2));
    world.advance(MS);
    assert_eq!(world.broker.waiting(), Waiting::default());
}

#[test]
fn if_the_leader_dies_or_leaves_before_it_assigns_the_others_join_again() {
    for leaves in [false, true] {
        let world = World::new();
        let [leader, follower] = two(&world);
        let mut waits = follower.sync();
        world.advance(SESSION - MS);
        assert!(!waits.is_answered());
        if leaves {
            world.ask(
                2,
                with!(LeaveGroupRequest {
                    group_id: readers(),
                    member_id: leader.id
                }),
            );
        } else {
            world.advance(MS);
        }
        let code = answered!(SyncGroup, waits.answer()).error_code;
        assert_eq!(code, RebalanceInProgress.code());
        world.advance(SESSION - MS); // The follower may take its time.
        let answer = joined(follower.join());
        assert_eq!(
            (
                answer.error_code,
                answer.generation_id,
                answer.members.len()
            ),
            (0, 2, 1)
        );
    }
}

#[test]
fn offsets_are_committed_by_members_only() {
    let world = World::new();
    world.create("orders");
    let mut stranger = Member::new(&world);
    assert_eq!(stranger.commit(5), 0); // Nobody is in: this is somebody who assigns by hand.
    let [mut first, _] = two(&world);
    assert_eq!(stranger.commit(6), UnknownMemberId.code());
    assert_eq!(first.commit(7), 0);
    first.generation -= 1;
    assert_eq!(first.commit(8), IllegalGeneration.code());
    stranger.generation = 0;
    assert_eq!(committed(&world), [7]);
}

#[test]
fn what_members_bring_along_is_limited() {
    let world = World::new();
    let new = StrBytes::new();
    let join = |group: &str, size| world.ask(3, join(group, &new, vec![b'x'; size]));
    assert_eq!(
        joined(join("late", 65 << 10)).error_code,
        InvalidRequest.code()
    );
    // Those who bring what may be brought join, and then stay silent.
    let gone: Vec<_> = (0..1000)
        .map(|n| join(&format!("g{}", n % 100), 60 << 10))
        .collect();
    world.advance(FIRST);
    drop(gone);
    assert_eq!(
        joined(join("late", 1)).error_code,
        GroupMaxSizeReached.code()
    );
    world.advance(SESSION); // All are out, at the same time.
    world.advance(REBALANCE);
    assert_eq!(world.broker.waiting(), Waiting::default());
    let late = join("late", 1);
    world.advance(FIRST);
    assert_eq!(joined(late).error_code, 0);
}

/// The delayed join of the forgotten one came to one after it of the same name, and found that
/// nobody had joined.
#[test]
fn a_group_without_members_is_forgotten_for_a_new_one_and_leaves_one_of_its_name_alone() {
    let world = World::new();
    world.create("orders");
    let brief = FIRST / 5;
    let step = FIRST / 5;
    let join = |name: &str, session: Duration| {
        let request = join(name, &StrBytes::new(), Vec::new());
        world.ask(
            3,
            request.with_session_timeout_ms(session.as_millis() as i32),
        )
    };
    assert_eq!(Member::new(&world).commit(5), 0);
    drop(join("readers", brief));
    world.advance(step); // Its only member has gone, and its first rebalance waits.
    let _others: Vec<Asked> = (0..199).map(|n| join(&format!("g{n}"), SESSION)).collect();
    assert_eq!(committed(&world), [5]);
    drop(join("last", brief)); // Readers are forgotten.
    assert!(committed(&world).is_empty());
    let refused = joined(join("readers", SESSION));
    assert_eq!(
        refused.error_code,
        CoordinatorNotAvailable.code(),
        "all have members"
    );
    world.advance(step);
    let reader = join("readers", SESSION); // And the last one for these.
    world.advance(FIRST);
    assert_eq!(joined(reader).error_code, 0);
    world.advance(FIRST);
    assert_eq!(world.broker.waiting(), waiting(0, 200));
}
