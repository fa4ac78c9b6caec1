//! Channels: who listens to what, and what is said there.

use super::{Call, Outcome};
use crate::peers::Kind;

/// SUBSCRIBE, PSUBSCRIBE, UNSUBSCRIBE and PUNSUBSCRIBE.
pub(super) fn change(call: &mut Call<'_>) -> Outcome {
    let kind = if call.name.starts_with('p') { Kind::Pattern } else { Kind::Channel };
    let on = !call.name.contains("un");
    let (peer, peers) = (&call.session.peer, &call.session.server.peers);
    let names = match &call.args[1..] {
        [] => peer.names(kind),
        names => names.to_vec(),
    };
    let mut tell = |name: Option<&[u8]>| {
        call.reply.push(3);
        call.reply.bulk(call.name);
        match name {
            Some(name) => call.reply.bulk(name),
            None => call.reply.null(),
        }
        call.reply.integer(peer.subscriptions());
    };
    for name in &names {
        peers.subscribe(peer, kind, name, on);
        tell(Some(name));
    }
    if names.is_empty() {
        tell(None);
    }
    Ok(())
}

pub(super) fn publish(call: &mut Call<'_>) -> Outcome {
    let heard = call.session.server.peers.publish(&call.args[1], &call.args[2]);
    call.reply.integer(heard);
    Ok(())
}
