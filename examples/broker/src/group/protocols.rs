//! Protocols: on which one the members of a group agree.

use super::member::Member;
use super::state::State;
use kafka_protocol::messages::JoinGroupRequest;
use kafka_protocol::protocol::StrBytes;

impl State {
    /// Chooses, of the protocols that all members know, the one with the most votes.
    pub(super) fn choose_protocol(&self) -> StrBytes {
        let candidates = self.common_protocols();
        let votes = |candidate: &StrBytes| {
            let votes = self.members.values().filter_map(|member| member.vote(&candidates));
            votes.filter(|vote| vote == candidate).count()
        };
        candidates.iter().max_by_key(|candidate| votes(candidate)).cloned().unwrap_or_default()
    }

    fn common_protocols(&self) -> Vec<StrBytes> {
        let names = self.members.values().next().into_iter().flat_map(|first| &first.protocols);
        let names = names.map(|protocol| &protocol.name);
        let known = |name: &&StrBytes| self.members.values().all(|member| member.knows(name));
        names.filter(known).cloned().collect()
    }

    /// Returns whether a member that knows these protocols fits in with the others.
    pub(super) fn accepts(&self, id: &StrBytes, request: &JoinGroupRequest) -> bool {
        let mut others = self.members.iter().filter(|(other, _)| *other != id).peekable();
        if others.peek().is_none() {
            return !request.protocols.is_empty();
        }
        let others: Vec<&Member> = others.map(|(_, member)| member).collect();
        let known = |name: &str| others.iter().all(|member| member.knows(name));
        request.protocol_type == self.protocol_type
            && request.protocols.iter().any(|protocol| known(&protocol.name))
    }
}
