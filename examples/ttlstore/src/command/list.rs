//! COMMAND: what the table of commands tells of itself.

use super::Call;
use super::failure::{Outcome, syntax_error};
use super::table::{COMMANDS, Command, NEEDS_ROOM, WRITES};
use crate::glob;
use crate::reply::Reply;

pub(super) fn count(call: &mut Call<'_>) -> Outcome {
    call.client.reply.count(COMMANDS.len());
    Ok(())
}

/// Answers with nothing: redis-cli asks for the documentation of commands, and does without it.
pub(super) fn docs(call: &mut Call<'_>) -> Outcome {
    call.client.reply.map(0);
    Ok(())
}

pub(super) fn info(call: &mut Call<'_>) -> Outcome {
    let reply = &mut call.client.reply;
    if call.args.len() < 3 {
        reply.array(COMMANDS.len());
        COMMANDS.iter().for_each(|command| tell(reply, command));
        return Ok(());
    }
    reply.array(call.args.len() - 2);
    for word in call.args.from(2) {
        let mut known = COMMANDS.iter();
        match known.find(|command| word.eq_ignore_ascii_case(command.name.as_bytes())) {
            Some(command) => tell(reply, command),
            None => reply.null(),
        }
    }
    Ok(())
}

/// Tells what clients use: the arity, whether it writes, and which words are keys.
fn tell(reply: &mut Reply, command: &Command) {
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(command.arity);
    let reads = command.keys.0 > 0 && !command.is(WRITES);
    let flags =
        [("write", command.is(WRITES)), ("readonly", reads), ("denyoom", command.is(NEEDS_ROOM))];
    let flags: Vec<_> = flags.iter().filter(|flag| flag.1).collect();
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag.0));
    let (first, last, step) = command.keys;
    [first, last, step].into_iter().for_each(|number| reply.integer(number));
    reply.set(0); // Categories of access rights,
    reply.array(0); // hints to clients,
    reply.array(0); // other ways to find keys.
    reply.array(command.subcommands.len());
    command.subcommands.iter().for_each(|command| tell(reply, command));
}

pub(super) fn names(call: &mut Call<'_>) -> Outcome {
    let pattern: &[u8] = match call.args.len() {
        2 => b"*",
        5 if call.word(2).eq_ignore_ascii_case(b"FILTERBY")
            && call.word(3).eq_ignore_ascii_case(b"PATTERN") =>
        {
            call.word(4)
        }
        _ => return Err(syntax_error()),
    };
    let is_meant = |command: &&Command| glob::matches(pattern, command.name.as_bytes());
    let names: Vec<_> = COMMANDS.iter().filter(is_meant).map(|command| command.name).collect();
    call.client.reply.array(names.len());
    names.iter().for_each(|name| call.client.reply.bulk(name.as_bytes()));
    Ok(())
}

pub(super) fn help(call: &mut Call<'_>) -> Outcome {
    tell_help(
        call,
        &["COMMAND", "COMMAND COUNT", "COMMAND DOCS", "COMMAND INFO [<name> ...]", "COMMAND LIST"],
    )
}

/// Tells the subcommands of a command, one a line.
pub(super) fn tell_help(call: &mut Call<'_>, lines: &[&str]) -> Outcome {
    call.client.reply.array(lines.len());
    lines.iter().for_each(|line| call.client.reply.simple(line));
    Ok(())
}
