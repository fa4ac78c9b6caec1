//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.

use super::failure::{Failure, Outcome};
use super::{Call, call, find};
use crate::client::Client;
use crate::request::Args;
use crate::shared::Shared;

pub(super) fn multi(call: &mut Call<'_>) -> Outcome {
    if !call.client.transaction.open() {
        return Err(Failure::new("ERR MULTI calls can not be nested"));
    }
    call.client.reply.ok();
    Ok(())
}

/// Keeps a command for EXEC.
pub(super) fn queue(
    shared: &Shared,
    client: &mut Client,
    args: Args<'_>,
    needs_room: bool,
) -> Outcome {
    if client.transaction.bytes() > shared.bounds.max_reply {
        client.transaction.fail();
        return Err(too_large());
    }
    client.transaction.push(args.to_request(), needs_room);
    client.reply.simple("QUEUED");
    Ok(())
}

fn too_large() -> Failure {
    Failure::new("ERR the transaction is too large")
}

/// Refuses a command, and notes what becomes of the transaction.
pub(super) fn refuse(
    shared: &Shared,
    client: &mut Client,
    word: &[u8],
    failure: Failure,
) -> Failure {
    client.transaction.fail();
    if !word.eq_ignore_ascii_case(b"EXEC") {
        return failure;
    }
    client.transaction.close(&shared.store);
    let text = failure.text().trim_start_matches("ERR ");
    Failure::new(format!("EXECABORT Transaction discarded because of: {text}"))
}

/// Runs the commands of a transaction. Nothing comes between them except the expiry of keys.
pub(super) fn exec(exec: &mut Call<'_>) -> Outcome {
    let (shared, client, now) = (exec.shared, &mut *exec.client, exec.now);
    if client.transaction.queued().is_none() {
        return Err(Failure::new("ERR EXEC without MULTI"));
    }
    let is_touched = client.transaction.is_touched(&shared.store, now.instant);
    let has_failed = client.transaction.has_failed();
    let queue = client.transaction.close(&shared.store);
    if has_failed {
        let text = "EXECABORT Transaction discarded because of previous errors.";
        return Err(Failure::new(text));
    }
    if is_touched {
        client.reply.null_array();
        return Ok(());
    }
    client.reply.array(queue.len());
    for request in &queue {
        let args = request.args();
        let outcome = find(args).and_then(|command| {
            (command.run)(&mut call(shared, &mut *client, args, now, command.name))
        });
        if let Err(failure) = outcome {
            client.reply.error(failure.text());
        }
        if client.reply.is_overflown() {
            break; // Nobody will read the rest.
        }
    }
    Ok(())
}

pub(super) fn discard(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.queued().is_none() {
        return Err(Failure::new("ERR DISCARD without MULTI"));
    }
    call.client.transaction.close(&call.shared.store);
    call.client.reply.ok();
    Ok(())
}

pub(super) fn watch(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.queued().is_some() {
        return Err(Failure::new("ERR WATCH inside MULTI is not allowed"));
    }
    for key in call.args.from(1) {
        if call.client.transaction.bytes() > call.shared.bounds.max_reply {
            return Err(too_large());
        }
        call.client.transaction.watch(&call.shared.store, key, call.now.instant);
    }
    call.client.reply.ok();
    Ok(())
}

pub(super) fn unwatch(call: &mut Call<'_>) -> Outcome {
    call.client.transaction.unwatch(&call.shared.store);
    call.client.reply.ok();
    Ok(())
}
