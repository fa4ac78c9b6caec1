//! CONFIG: what clients ask for before they begin.

use super::Call;
use super::failure::{Failure, Outcome, shown};
use crate::glob;

/// Clients switch on what is always on.
const EVENTS: &str = "notify-keyspace-events";

/// Tells each name as it was asked for, as Redis does, if it is no pattern.
pub(super) fn get(call: &mut Call<'_>) -> Outcome {
    let bounds = &call.shared.bounds;
    let known = [
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", bounds.max_clients.to_string()),
        ("maxmemory", bounds.max_memory.to_string()),
        ("maxmemory-policy", bounds.policy.to_string()),
        ("maxmemory-clients", bounds.max_held.to_string()),
        ("proto-max-bulk-len", bounds.request.max_frame.to_string()),
        (
            "client-output-buffer-limit",
            format!("normal {} 0 0 pubsub {} 0 0", bounds.max_reply, bounds.max_backlog),
        ),
        (EVENTS, "Ex".to_owned()),
    ];
    let mut told: Vec<(Vec<u8>, &str)> = Vec::new();
    for pattern in call.args.from(2) {
        let is_pattern = pattern.iter().any(|byte| b"*?[".contains(byte));
        for (name, value) in &known {
            let matches = glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes());
            let shown = if is_pattern { name.as_bytes() } else { pattern };
            if matches && !told.iter().any(|(other, _)| other.eq_ignore_ascii_case(shown)) {
                told.push((shown.to_vec(), value));
            }
        }
    }
    call.client.reply.map(told.len());
    for (name, value) in told {
        call.client.reply.bulk(&name);
        call.client.reply.bulk(value.as_bytes());
    }
    Ok(())
}

/// Refuses to set anything else: the command line does that.
pub(super) fn set(call: &mut Call<'_>) -> Outcome {
    if call.args.len() == 4 && call.word(2).eq_ignore_ascii_case(EVENTS.as_bytes()) {
        call.client.reply.ok();
        return Ok(());
    }
    let option = shown(call.word(2), 128);
    let text = "Unknown option or number of arguments for CONFIG SET";
    Err(Failure::new(format!("ERR {text} - '{option}'")))
}

/// Figures that only grow are for Prometheus, which copes with that.
pub(super) fn resetstat(call: &mut Call<'_>) -> Outcome {
    call.client.reply.ok();
    Ok(())
}

pub(super) fn rewrite(_: &mut Call<'_>) -> Outcome {
    Err(Failure::new("ERR The server is running without a config file"))
}

pub(super) fn help(call: &mut Call<'_>) -> Outcome {
    super::list::tell_help(
        call,
        &[
            "CONFIG GET <pattern> ...",
            "CONFIG SET notify-keyspace-events <any>",
            "CONFIG RESETSTAT",
        ],
    )
}
