//! What concerns one connection.

use super::{
    Call, Failure, Outcome, not_an_integer, syntax_error, unknown_subcommand, wrong_arity,
};
use crate::client::Client;
use crate::reply::Protocol;
use crate::request::number;

/// Channels per connection.
const MAX_CHANNELS: usize = 1000;

pub(super) fn ping(call: &mut Call<'_>) -> Outcome {
    if call.args.len() > 2 {
        return Err(wrong_arity(call.name));
    }
    let word = call.args.get(1);
    let listening = call.client.is_listening_only();
    let reply = &mut call.client.reply;
    match word {
        _ if listening => {
            reply.array(2);
            reply.bulk(b"pong");
            reply.bulk(word.unwrap_or_default());
        }
        Some(word) => reply.bulk(word),
        None => reply.simple("PONG"),
    }
    Ok(())
}

pub(super) fn echo(call: &mut Call<'_>) -> Outcome {
    call.client.reply.bulk(call.args.get(1).unwrap_or_default());
    Ok(())
}

pub(super) fn select(call: &mut Call<'_>) -> Outcome {
    match number(call.word(1)) {
        Some(0) => call.client.reply.ok(),
        Some(_) => return Err(Failure("ERR DB index is out of range".into())),
        None => return Err(not_an_integer()),
    }
    Ok(())
}

pub(super) fn auth(_: &mut Call<'_>) -> Outcome {
    Err(no_passwords())
}

fn no_passwords() -> Failure {
    Failure("ERR AUTH called, but this server has no passwords".into())
}

pub(super) fn hello(call: &mut Call<'_>) -> Outcome {
    let mut protocol = call.client.reply.protocol;
    if let Some(version) = call.args.get(1) {
        protocol = match number(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(Failure("NOPROTO unsupported protocol version".into())),
            None => {
                let text = "ERR Protocol version is not an integer or out of range";
                return Err(Failure(text.into()));
            }
        };
    }
    let mut words = call.args.from(2);
    let mut name = None;
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"SETNAME") {
            name = Some(words.next().ok_or_else(syntax_error)?);
        } else if word.eq_ignore_ascii_case(b"AUTH") {
            return Err(no_passwords());
        } else {
            return Err(syntax_error());
        }
    }
    if let Some(name) = name {
        call.client.name = name.to_vec();
    }
    call.client.set_protocol(protocol, &call.shared.events);
    greet(call.client);
    Ok(())
}

fn greet(client: &mut Client) {
    let id = i64::try_from(client.id).unwrap_or(i64::MAX);
    let reply = &mut client.reply;
    let is_new = reply.protocol == Protocol::Resp3;
    reply.map(7);
    for (name, value) in [("server", "ttlstore"), ("version", env!("CARGO_PKG_VERSION"))] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in [("proto", if is_new { 3 } else { 2 }), ("id", id)] {
        reply.bulk(name.as_bytes());
        reply.integer(value);
    }
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

pub(super) fn client(call: &mut Call<'_>) -> Outcome {
    let is = |name: &str, words| {
        call.args.len() == words && call.word(1).eq_ignore_ascii_case(name.as_bytes())
    };
    if is("SETNAME", 3) {
        call.client.name = call.word(2).to_vec();
        call.client.reply.ok();
    } else if is("SETINFO", 4) {
        call.client.reply.ok();
    } else if is("GETNAME", 2) {
        match &call.client.name[..] {
            [] => call.client.reply.null(),
            name => call.client.reply.bulk(name),
        }
    } else if is("ID", 2) {
        call.client.reply.integer(i64::try_from(call.client.id).unwrap_or(i64::MAX));
    } else {
        return Err(unknown_subcommand(call));
    }
    Ok(())
}

pub(super) fn subscribe(call: &mut Call<'_>) -> Outcome {
    for channel in call.args.from(1) {
        if call.client.channels().len() >= MAX_CHANNELS {
            return Err(Failure("ERR too many channels".into()));
        }
        call.client.subscribe(channel, &call.shared.events);
        confirm(call.client, b"subscribe", Some(channel));
    }
    Ok(())
}

pub(super) fn unsubscribe(call: &mut Call<'_>) -> Outcome {
    let mut channels: Vec<Vec<u8>> = call.args.from(1).map(<[u8]>::to_vec).collect();
    if channels.is_empty() {
        channels = call.client.channels().to_vec();
    }
    if channels.is_empty() {
        confirm(call.client, b"unsubscribe", None);
    }
    for channel in channels {
        call.client.unsubscribe(&channel);
        confirm(call.client, b"unsubscribe", Some(&channel));
    }
    Ok(())
}

fn confirm(client: &mut Client, kind: &[u8], channel: Option<&[u8]>) {
    let count = client.channels().len();
    client.reply.push(3);
    client.reply.bulk(kind);
    match channel {
        Some(channel) => client.reply.bulk(channel),
        None => client.reply.null(),
    }
    client.reply.count(count);
}

pub(super) fn reset(call: &mut Call<'_>) -> Outcome {
    for channel in call.client.channels().to_vec() {
        call.client.unsubscribe(&channel);
    }
    call.client.name.clear();
    call.client.set_protocol(Protocol::Resp2, &call.shared.events);
    call.client.reply.simple("RESET");
    Ok(())
}

pub(super) fn quit(call: &mut Call<'_>) -> Outcome {
    call.client.reply.ok();
    call.client.closing = true;
    Ok(())
}
