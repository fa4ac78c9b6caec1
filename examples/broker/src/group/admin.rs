//! What tools ask of groups: which there are, who is in them; and to delete them.

use super::coordinator::{Coordinator, Group};
use super::state::{Phase, State};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    GroupId, ListGroupsRequest, ListGroupsResponse,
};
use kafka_protocol::protocol::StrBytes;

/// The only type of groups here.
const TYPE: StrBytes = StrBytes::from_static_str("classic");

impl Coordinator {
    pub fn list(&self, request: &ListGroupsRequest) -> ListGroupsResponse {
        let listed = |group: &Group| {
            let state = group.state.lock();
            ListedGroup::default()
                .with_group_id(GroupId(StrBytes::from_string(group.name.to_string())))
                .with_protocol_type(state.protocol_type.clone())
                .with_group_state(state.phase.name())
                .with_group_type(TYPE)
        };
        let wanted = |asked: &[StrBytes], value: &StrBytes| {
            asked.is_empty() || asked.iter().any(|one| one.eq_ignore_ascii_case(value))
        };
        let groups = self.all();
        let groups = groups.iter().map(|group| listed(group)).filter(|group| {
            wanted(&request.states_filter, &group.group_state)
                && wanted(&request.types_filter, &group.group_type)
        });
        ListGroupsResponse::default().with_groups(groups.collect())
    }

    pub fn describe(&self, request: DescribeGroupsRequest, version: i16) -> DescribeGroupsResponse {
        let described = |id: GroupId| match self.get(&id) {
            Some(group) => group.state.lock().described().with_group_id(id),
            None => {
                let dead = DescribedGroup::default().with_group_id(id);
                let error = if version >= 6 { ResponseError::GroupIdNotFound.code() } else { 0 };
                dead.with_error_code(error).with_group_state(StrBytes::from_static_str("Dead"))
            }
        };
        let groups = request.groups.into_iter().map(described);
        DescribeGroupsResponse::default().with_groups(groups.collect())
    }

    pub fn delete(&self, request: DeleteGroupsRequest) -> DeleteGroupsResponse {
        let results = request.groups_names.into_iter().map(|id| {
            let code = self.delete_one(&id).map_or_else(|error| error.code(), |()| 0);
            DeletableGroupResult::default().with_group_id(id).with_error_code(code)
        });
        DeleteGroupsResponse::default().with_results(results.collect())
    }
}

impl State {
    fn described(&self) -> DescribedGroup {
        let member = |(id, member): (&StrBytes, &super::member::Member)| {
            DescribedGroupMember::default()
                .with_member_id(id.clone())
                .with_client_id(StrBytes::from_string(client_id(id).to_owned()))
                .with_client_host(StrBytes::from_static_str("/"))
                .with_member_metadata(member.metadata(&self.protocol))
                .with_member_assignment(member.assignment.clone())
        };
        DescribedGroup::default()
            .with_group_state(self.phase.name())
            .with_protocol_type(self.protocol_type.clone())
            .with_protocol_data(self.protocol.clone())
            .with_members(self.members.iter().map(member).collect())
    }
}

impl Phase {
    fn name(self) -> StrBytes {
        StrBytes::from_static_str(match self {
            Phase::Empty => "Empty",
            Phase::PreparingRebalance => "PreparingRebalance",
            Phase::CompletingRebalance => "CompletingRebalance",
            Phase::Stable => "Stable",
        })
    }
}

/// Returns the client's id, which a member's id begins with; two numbers follow.
fn client_id(member_id: &str) -> &str {
    member_id.rsplitn(3, '-').last().unwrap_or_default()
}
