//! What concerns the connection: what clients ask before they begin, and the channels to which they
//! listen.

use super::{Call, NOT_AN_INTEGER, Outcome, shown, unknown_subcommand};
use crate::REDIS_VERSION;
use crate::connections::Kind;
use crate::resp::number;

pub(super) fn ping(call: &mut Call<'_>) -> Outcome {
    let word = call.args.get(1);
    match word {
        _ if call.session.listens_only() => {
            call.reply.array(2);
            call.reply.bulk("pong");
            call.reply.bulk(word.map_or(&[][..], |word| word));
        }
        Some(word) => call.reply.bulk(word),
        None => call.reply.simple("PONG"),
    }
    Ok(())
}

pub(super) fn echo(call: &mut Call<'_>) -> Outcome {
    call.reply.bulk(&call.args[1]);
    Ok(())
}

pub(super) fn hello(call: &mut Call<'_>) -> Outcome {
    match call.args.get(2..).unwrap_or_default() {
        [] => {}
        [option, _] if option.eq_ignore_ascii_case(b"SETNAME") => {}
        [option, ..] => {
            let option = shown(option);
            return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
        }
    }
    match call.args.get(1).map(|version| number(version)) {
        None => {}
        Some(Some(version @ (2 | 3))) => {
            call.reply.resp3 = version == 3;
            call.session.peer.resp3.set(version == 3);
        }
        Some(Some(_)) => return Err("NOPROTO unsupported protocol version".into()),
        Some(None) => return Err("ERR Protocol version is not an integer or out of range".into()),
    }
    let proto = if call.reply.resp3 { 3 } else { 2 };
    let id = call.session.peer.id;
    call.reply.map(4);
    ["server", "redis", "version", REDIS_VERSION]
        .iter()
        .for_each(|word| call.reply.bulk(word));
    for (name, number) in [("proto", proto), ("id", id)] {
        call.reply.bulk(name);
        call.reply.integer(number);
    }
    Ok(())
}

/// Takes what clients tell of themselves, and forgets it. Tells the number of the connection.
pub(super) fn client(call: &mut Call<'_>) -> Outcome {
    match &call.args[1..] {
        [word] if word.eq_ignore_ascii_case(b"ID") => call.reply.integer(call.session.peer.id),
        [word, _] if word.eq_ignore_ascii_case(b"SETNAME") => call.reply.ok(),
        [word, _, _] if word.eq_ignore_ascii_case(b"SETINFO") => call.reply.ok(),
        _ => return Err(unknown_subcommand(call)),
    }
    Ok(())
}

/// Lets clients switch on the one kind of events that there is, which is always on.
pub(super) fn config(call: &mut Call<'_>) -> Outcome {
    let is = |index: usize, name: &[u8]| call.args[index].eq_ignore_ascii_case(name);
    if call.args.len() != 4 || !is(1, b"SET") || !is(2, b"notify-keyspace-events") {
        return Err(unknown_subcommand(call));
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn select(call: &mut Call<'_>) -> Outcome {
    if number(&call.args[1]).ok_or(NOT_AN_INTEGER)? != 0 {
        return Err("ERR DB index is out of range".into());
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn info(call: &mut Call<'_>) -> Outcome {
    let text = call.session.server.info();
    call.reply.bulk(text);
    Ok(())
}

pub(super) fn quit(call: &mut Call<'_>) -> Outcome {
    call.session.is_closing = true;
    call.reply.ok();
    Ok(())
}

/// SUBSCRIBE, PSUBSCRIBE, UNSUBSCRIBE and PUNSUBSCRIBE.
pub(super) fn change(call: &mut Call<'_>) -> Outcome {
    let kind = if call.name.starts_with('p') {
        Kind::Pattern
    } else {
        Kind::Channel
    };
    let on = !call.name.contains("un");
    let peer = &call.session.peer;
    let peers = &call.session.server.peers;
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
    let heard = call
        .session
        .server
        .peers
        .publish(&call.args[1], &call.args[2]);
    call.reply.integer(heard);
    Ok(())
}
