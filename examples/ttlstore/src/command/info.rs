//! What the server tells about itself and all of its keys.

use super::{Call, Failure, Outcome, shown, syntax_error, unknown_subcommand};
use crate::glob;
use std::fmt::Write;
use std::sync::atomic::Ordering;

pub(super) fn dbsize(call: &mut Call<'_>) -> Outcome {
    call.client.reply.count(call.shared.store.len());
    Ok(())
}

pub(super) fn keys(call: &mut Call<'_>) -> Outcome {
    let pattern = call.word(1);
    let mut found: Vec<Vec<u8>> = Vec::new();
    call.shared.store.for_each(call.now.instant, |key, _| {
        if glob::matches(pattern, key) {
            found.push(key.to_vec());
        }
    });
    call.client.reply.array(found.len());
    found.iter().for_each(|key| call.client.reply.bulk(key));
    Ok(())
}

/// Flushes the keys. ASYNC and SYNC are the same here: no shard is locked for long.
pub(super) fn flush(call: &mut Call<'_>) -> Outcome {
    let how = call.word(1);
    let known = [&b"ASYNC"[..], b"SYNC"].iter().any(|known| how.eq_ignore_ascii_case(known));
    if call.args.len() > 2 || call.args.len() == 2 && !known {
        return Err(syntax_error());
    }
    call.shared.store.flush();
    call.client.reply.ok();
    Ok(())
}

pub(super) fn info(call: &mut Call<'_>) -> Outcome {
    let mut text = String::new();
    for (name, section) in sections(call) {
        let is_wanted = |wanted: &[u8]| {
            let all = ["all", "default", "everything", name];
            all.iter().any(|known| wanted.eq_ignore_ascii_case(known.as_bytes()))
        };
        if call.args.len() == 1 || call.args.from(1).any(is_wanted) {
            let blank = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a string can't fail.
            let _ = write!(text, "{blank}# {name}\r\n{section}");
        }
    }
    call.client.reply.text(&text);
    Ok(())
}

fn sections(call: &Call<'_>) -> [(&'static str, String); 5] {
    let shared = call.shared;
    let (counts, store) = (&shared.counts, &shared.store);
    let uptime = call.now.instant.saturating_duration_since(shared.started).as_secs();
    let stats = shared.timer.stats();
    let late = |share| stats.lateness.quantile(share).map_or(0, |time| time.as_micros());
    let (keys, deadlines) = (store.len(), store.deadlines());
    let keyspace = match keys {
        0 => String::new(),
        _ => format!("db0:keys={keys},expires={deadlines},avg_ttl=0\r\n"),
    };
    [
        (
            "Server",
            format!(
                "server_name:ttlstore\r\nserver_version:{}\r\nprocess_id:{}\r\n\
                 uptime_in_seconds:{uptime}\r\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id(),
            ),
        ),
        (
            "Clients",
            format!(
                "connected_clients:{}\r\nmaxclients:{}\r\npubsub_clients:{}\r\n",
                counts.clients.load(Ordering::Relaxed),
                shared.bounds.max_clients,
                shared.events.subscribers(),
            ),
        ),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
                 rejected_connections:{}\r\nexpired_keys:{}\r\n",
                counts.connections.load(Ordering::Relaxed),
                counts.commands.load(Ordering::Relaxed),
                counts.refused.load(Ordering::Relaxed),
                store.expired(),
            ),
        ),
        (
            "Timer",
            format!(
                "timer_pending:{}\r\ntimer_late_us_p50:{}\r\ntimer_late_us_p99:{}\r\n\
                 timer_late_us_max:{}\r\n",
                stats.pending,
                late(0.5),
                late(0.99),
                late(1.0),
            ),
        ),
        ("Keyspace", keyspace),
    ]
}

/// Answers redis-cli, which asks for the documentation of commands and lives without it.
pub(super) fn command(call: &mut Call<'_>) -> Outcome {
    let subcommand = call.word(1);
    if call.args.len() == 1 {
        call.client.reply.array(0);
    } else if subcommand.eq_ignore_ascii_case(b"DOCS") {
        call.client.reply.map(0);
    } else if subcommand.eq_ignore_ascii_case(b"COUNT") {
        call.client.reply.count(super::COMMANDS.len());
    } else {
        return Err(unknown_subcommand(call));
    }
    Ok(())
}

/// Answers what clients ask for before they begin. Nothing can be set: events are always told.
pub(super) fn config(call: &mut Call<'_>) -> Outcome {
    let max_clients = call.shared.bounds.max_clients.to_string();
    let events = ("notify-keyspace-events", "Ex");
    let known = [("save", ""), ("appendonly", "no"), ("maxclients", &max_clients), events];
    let is = |name: &[u8]| call.word(1).eq_ignore_ascii_case(name);
    if is(b"GET") && call.args.len() > 2 {
        let asked = |name: &str| {
            let matches =
                |pattern: &[u8]| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes());
            call.args.from(2).any(matches)
        };
        let told: Vec<_> = known.iter().filter(|known| asked(known.0)).collect();
        call.client.reply.map(told.len());
        for (name, value) in told {
            call.client.reply.bulk(name.as_bytes());
            call.client.reply.bulk(value.as_bytes());
        }
        return Ok(());
    }
    if is(b"SET") && call.args.len() == 4 {
        // Clients switch on what is always on.
        if call.word(2).eq_ignore_ascii_case(events.0.as_bytes()) {
            call.client.reply.ok();
            return Ok(());
        }
        let option = shown(call.word(2), 128);
        let text = "Unknown option or number of arguments for CONFIG SET";
        return Err(Failure(format!("ERR {text} - '{option}'").into()));
    }
    Err(unknown_subcommand(call))
}
