//! INFO: what the server tells about itself.

use super::Call;
use super::failure::Outcome;
use std::fmt::Write;
use std::sync::atomic::Ordering;

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

fn sections(call: &Call<'_>) -> [(&'static str, String); 6] {
    let shared = call.shared;
    let (seats, store, tally) = (&shared.seats, &shared.store, shared.store.tally());
    let uptime = call.now.instant.saturating_duration_since(shared.started).as_secs();
    let stats = shared.timer.stats();
    let late = |share| stats.lateness.quantile(share).map_or(0, |time| time.as_micros());
    let (keys, deadlines) = (store.len(), tally.deadlines());
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
                seats.open(),
                shared.bounds.max_clients,
                shared.events.subscribers(),
            ),
        ),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
                 rejected_connections:{}\r\nexpired_keys:{}\r\nevicted_keys:{}\r\n\
                 evicted_clients:{}\r\n",
                seats.taken(),
                shared.commands.load(Ordering::Relaxed),
                seats.refused(),
                tally.expired(),
                shared.memory.evicted(),
                seats.cut(),
            ),
        ),
        ("Memory", memory(call)),
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

fn memory(call: &Call<'_>) -> String {
    let shared = call.shared;
    format!(
        "used_memory:{}\r\nused_memory_clients:{}\r\nmaxmemory:{}\r\n\
         maxmemory_policy:{}\r\nmaxmemory_clients:{}\r\n",
        shared.store.tally().bytes(),
        shared.seats.held(),
        shared.bounds.max_memory,
        shared.bounds.policy,
        shared.bounds.max_held,
    )
}
