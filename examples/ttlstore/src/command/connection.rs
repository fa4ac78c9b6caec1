//! What concerns the connection on which it comes.

use super::Call;
use super::clients::set_name;
use super::failure::{Failure, Outcome, not_an_integer, shown, syntax_error, wrong_arity};
use crate::client::{Client, Mute};
use crate::reply::Protocol;
use crate::request::number;

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
    match number(call.word(1)).map(|index| (index, i32::try_from(index))) {
        Some((0, _)) => call.client.reply.ok(),
        Some((_, Ok(_))) => return Err(Failure::new("ERR DB index is out of range")),
        Some((_, Err(_))) => {
            let (min, max) = (i32::MIN, i32::MAX);
            let text = format!("ERR value is out of range, value must between {min} and {max}");
            return Err(Failure::new(text));
        }
        None => return Err(not_an_integer()),
    }
    Ok(())
}

/// Accepts any password of the default user: there are none.
pub(super) fn auth(call: &mut Call<'_>) -> Outcome {
    match call.args.len() {
        2 => Err(Failure::new(
            "ERR AUTH <password> called without any password configured for the default user. Are \
             you sure your configuration is correct?",
        )),
        3 => {
            check_user(call.word(1))?;
            call.client.reply.ok();
            Ok(())
        }
        _ => Err(syntax_error()),
    }
}

fn check_user(name: &[u8]) -> Outcome {
    if name == b"default" {
        return Ok(());
    }
    Err(Failure::new("WRONGPASS invalid username-password pair or user is disabled."))
}

pub(super) fn hello(call: &mut Call<'_>) -> Outcome {
    let mut protocol = call.client.reply.protocol;
    if let Some(version) = call.args.get(1) {
        protocol = match number(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(Failure::new("NOPROTO unsupported protocol version")),
            None => {
                let text = "ERR Protocol version is not an integer or out of range";
                return Err(Failure::new(text));
            }
        };
    }
    let mut words = call.args.from(2);
    let (mut name, mut user) = (None, None);
    while let Some(word) = words.next() {
        let wrong =
            || Failure::new(format!("ERR Syntax error in HELLO option '{}'", shown(word, 128)));
        if word.eq_ignore_ascii_case(b"SETNAME") {
            name = Some(words.next().ok_or_else(wrong)?);
        } else if word.eq_ignore_ascii_case(b"AUTH") {
            user = Some(words.next().ok_or_else(wrong)?);
            words.next().ok_or_else(wrong)?; // The password.
        } else {
            return Err(wrong());
        }
    }
    user.map_or(Ok(()), check_user)?;
    if let Some(name) = name {
        set_name(call.client, name)?;
    }
    call.client.reply.protocol = protocol;
    greet(call.client);
    Ok(())
}

fn greet(client: &mut Client) {
    let id = i64::try_from(client.seat.id).unwrap_or(i64::MAX);
    let reply = &mut client.reply;
    let resp = if reply.protocol == Protocol::Resp3 { 3 } else { 2 };
    client.seat.told.lock().resp = resp;
    reply.map(7);
    for (name, value) in [("server", "ttlstore"), ("version", env!("CARGO_PKG_VERSION"))] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in [("proto", i64::from(resp)), ("id", id)] {
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

pub(super) fn reset(call: &mut Call<'_>) -> Outcome {
    let client = &mut *call.client;
    for (names, is_pattern) in
        [(client.channels().to_vec(), false), (client.patterns().to_vec(), true)]
    {
        names.iter().for_each(|name| client.unsubscribe(name, is_pattern));
    }
    client.transaction.close(&call.shared.store);
    client.mute = Mute::Nothing;
    client.reply.protocol = Protocol::Resp2;
    *client.seat.told.lock() = crate::seat::Told::default();
    client.reply.simple("RESET");
    Ok(())
}

pub(super) fn quit(call: &mut Call<'_>) -> Outcome {
    call.client.reply.ok();
    call.client.closing = true;
    Ok(())
}
