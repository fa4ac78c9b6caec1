//! CLIENT: what concerns connections, one's own and others.

use super::Call;
use super::failure::{Failure, Outcome, not_an_integer, shown, syntax_error};
use crate::client::{Client, Mute};
use crate::request::number;
use crate::seat::{FREE, Seat};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

pub(super) fn id(call: &mut Call<'_>) -> Outcome {
    call.client.reply.integer(i64::try_from(call.client.seat.id).unwrap_or(i64::MAX));
    Ok(())
}

pub(super) fn getname(call: &mut Call<'_>) -> Outcome {
    match &call.client.seat.told.lock().name[..] {
        [] => call.client.reply.null(),
        name => call.client.reply.bulk(name),
    }
    Ok(())
}

pub(super) fn setname(call: &mut Call<'_>) -> Outcome {
    set_name(call.client, call.word(2))?;
    call.client.reply.ok();
    Ok(())
}

/// Gives the connection a name of visible characters.
pub(super) fn set_name(client: &Client, name: &[u8]) -> Outcome {
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) || name.len() > FREE {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(Failure::new(text));
    }
    client.seat.told.lock().name = name.to_vec();
    Ok(())
}

/// Stores which library the client is, as newer clients tell unasked.
pub(super) fn setinfo(call: &mut Call<'_>) -> Outcome {
    call.client.reply.ok();
    Ok(())
}

pub(super) fn info(call: &mut Call<'_>) -> Outcome {
    let line = line(call, &call.client.seat);
    call.client.reply.text(&line);
    Ok(())
}

pub(super) fn list(call: &mut Call<'_>) -> Outcome {
    let mut seats = call.shared.seats.all();
    if call.args.len() > 3 && call.word(2).eq_ignore_ascii_case(b"ID") {
        let id = |word| number(word).and_then(|id| u64::try_from(id).ok());
        let wanted: Option<Vec<u64>> = call.args.from(3).map(id).collect();
        let wanted = wanted.ok_or_else(|| Failure::new("ERR Invalid client ID"))?;
        seats.retain(|seat| wanted.contains(&seat.id));
    } else if call.args.len() == 4 && call.word(2).eq_ignore_ascii_case(b"TYPE") {
        let kind = kind(call.word(3))?;
        seats.retain(|seat| kind == Some(listens(seat)));
    } else if call.args.len() != 2 {
        return Err(syntax_error());
    }
    let text: String = seats.iter().map(|seat| line(call, seat)).collect();
    call.client.reply.text(&text);
    Ok(())
}

fn listens(seat: &Seat) -> bool {
    let told = seat.told.lock();
    told.channels + told.patterns > 0
}

/// Returns whether subscribers are meant, or the others; none is a replica or a master.
fn kind(word: &[u8]) -> Result<Option<bool>, Failure> {
    let kinds =
        [("normal", Some(false)), ("pubsub", Some(true)), ("replica", None), ("master", None)];
    let known = kinds.iter().find(|kind| word.eq_ignore_ascii_case(kind.0.as_bytes()));
    let unknown = || Failure::new(format!("ERR Unknown client type '{}'", shown(word, 128)));
    known.map(|kind| kind.1).ok_or_else(unknown)
}

fn line(call: &Call<'_>, seat: &Seat) -> String {
    let told = seat.told.lock();
    let now = call.now.instant;
    let since = |then: Instant| now.saturating_duration_since(then).as_secs();
    let mut line = format!("id={} ", seat.id);
    // Writing to a string can't fail.
    if let Some((peer, local)) = seat.addresses {
        let _ = write!(line, "addr={peer} laddr={local} ");
    }
    let is_own = seat.id == call.client.seat.id;
    let queued = call.client.transaction.queued().filter(|_| is_own);
    let _ = writeln!(
        line,
        "name={} age={} idle={} flags={} db=0 sub={} psub={} multi={} tot-mem={} cmd={} \
         user=default resp={}",
        String::from_utf8_lossy(&told.name),
        since(seat.since),
        since(told.active.unwrap_or(seat.since)),
        if told.channels + told.patterns > 0 { "P" } else { "N" },
        told.channels,
        told.patterns,
        queued.or(told.queued).map_or(-1, |count| i64::try_from(count).unwrap_or(i64::MAX)),
        seat.held(),
        if is_own { call.name } else { told.command },
        told.resp.max(2),
    );
    line
}

pub(super) fn kill(call: &mut Call<'_>) -> Outcome {
    if call.args.len() == 3 {
        let address = call.word(2);
        let all = call.shared.seats.all();
        let seat = all.iter().find(|seat| has_address(seat, address, false));
        let seat = seat.ok_or_else(|| Failure::new("ERR No such client"))?;
        end(call, seat);
        call.client.reply.ok();
        return Ok(());
    }
    let mut left = call.shared.seats.all();
    let mut skips_self = true;
    let mut words = call.args.from(2);
    while let Some(word) = words.next() {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let value = words.next().ok_or_else(syntax_error)?;
        match () {
            () if is("ID") => {
                let id = number(value).filter(|id| *id > 0).map(i64::unsigned_abs);
                let wrong = || Failure::new("ERR client-id should be greater than 0");
                let id = id.ok_or_else(wrong)?;
                left.retain(|seat| seat.id == id);
            }
            () if is("ADDR") => left.retain(|seat| has_address(seat, value, false)),
            () if is("LADDR") => left.retain(|seat| has_address(seat, value, true)),
            () if is("TYPE") => {
                let kind = kind(value)?;
                left.retain(|seat| kind == Some(listens(seat)));
            }
            () if is("USER") => left.retain(|_| value == b"default"),
            () if is("SKIPME") && value.eq_ignore_ascii_case(b"YES") => skips_self = true,
            () if is("SKIPME") && value.eq_ignore_ascii_case(b"NO") => skips_self = false,
            () => return Err(syntax_error()),
        }
    }
    left.retain(|seat| !(skips_self && seat.id == call.client.seat.id));
    left.iter().for_each(|seat| end(call, seat));
    call.client.reply.count(left.len());
    Ok(())
}

fn has_address(seat: &Seat, address: &[u8], local: bool) -> bool {
    let is = |(peer, own): (_, _)| {
        let known: std::net::SocketAddr = if local { own } else { peer };
        known.to_string().as_bytes() == address
    };
    seat.addresses.is_some_and(is)
}

/// Ends a connection; one's own ends after the reply.
fn end(call: &mut Call<'_>, seat: &Arc<Seat>) {
    if seat.id == call.client.seat.id {
        call.client.closing = true;
    } else {
        seat.cut();
    }
}

pub(super) fn reply(call: &mut Call<'_>) -> Outcome {
    let is = |name: &str| call.word(2).eq_ignore_ascii_case(name.as_bytes());
    match () {
        () if is("ON") => {
            call.client.mute = Mute::Nothing;
            call.client.reply.ok();
        }
        () if is("OFF") => call.client.mute = Mute::All,
        () if is("SKIP") && call.client.mute == Mute::All => {}
        () if is("SKIP") => call.client.mute = Mute::ThisAndNext,
        () => return Err(syntax_error()),
    }
    Ok(())
}

/// Answers that no client is blocked: no command blocks.
pub(super) fn unblock(call: &mut Call<'_>) -> Outcome {
    number(call.word(2)).ok_or_else(not_an_integer)?;
    call.client.reply.integer(0);
    Ok(())
}

pub(super) fn help(call: &mut Call<'_>) -> Outcome {
    super::list::tell_help(
        call,
        &[
            "CLIENT GETNAME",
            "CLIENT ID",
            "CLIENT INFO",
            "CLIENT KILL <ip:port> | [ID|ADDR|LADDR|TYPE|USER|SKIPME <value>] ...",
            "CLIENT LIST [TYPE (NORMAL|PUBSUB) | ID <id> ...]",
            "CLIENT REPLY (ON|OFF|SKIP)",
            "CLIENT SETINFO <attribute> <value>",
            "CLIENT SETNAME <name>",
            "CLIENT UNBLOCK <id>",
        ],
    )
}
