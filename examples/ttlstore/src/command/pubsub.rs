//! SUBSCRIBE and PSUBSCRIBE, and their ends.

use super::Call;
use super::failure::{Failure, Outcome};
use crate::client::Client;

/// Channels and patterns of a connection.
const MAX_CHANNELS: usize = 1000;

pub(super) fn subscribe(call: &mut Call<'_>) -> Outcome {
    begin(call, false, b"subscribe")
}

pub(super) fn psubscribe(call: &mut Call<'_>) -> Outcome {
    begin(call, true, b"psubscribe")
}

pub(super) fn unsubscribe(call: &mut Call<'_>) -> Outcome {
    end(call, false, b"unsubscribe")
}

pub(super) fn punsubscribe(call: &mut Call<'_>) -> Outcome {
    end(call, true, b"punsubscribe")
}

fn begin(call: &mut Call<'_>, is_pattern: bool, kind: &[u8]) -> Outcome {
    for name in call.args.from(1) {
        if call.client.subscriptions() >= MAX_CHANNELS {
            return Err(Failure::new("ERR too many channels"));
        }
        call.client.subscribe(name, is_pattern, &call.shared.events);
        confirm(call.client, kind, Some(name));
    }
    Ok(())
}

fn end(call: &mut Call<'_>, is_pattern: bool, kind: &[u8]) -> Outcome {
    let mut names: Vec<Vec<u8>> = call.args.from(1).map(<[u8]>::to_vec).collect();
    if names.is_empty() {
        let all = if is_pattern { call.client.patterns() } else { call.client.channels() };
        names = all.to_vec();
    }
    if names.is_empty() {
        confirm(call.client, kind, None);
    }
    for name in names {
        call.client.unsubscribe(&name, is_pattern);
        confirm(call.client, kind, Some(&name));
    }
    Ok(())
}

fn confirm(client: &mut Client, kind: &[u8], name: Option<&[u8]>) {
    let count = client.subscriptions();
    client.reply.push(3);
    client.reply.bulk(kind);
    match name {
        Some(name) => client.reply.bulk(name),
        None => client.reply.null(),
    }
    client.reply.count(count);
    let mut told = client.seat.told.lock();
    (told.channels, told.patterns) = (client.channels().len(), client.patterns().len());
}
