//! How a server does what it is asked, as its log says.

use tokio_postgres::{Client, Row};

/// Has it write that down.
pub(crate) const TOLD: &[&str] = &[
    "fsync=off",
    "logging_collector=on",
    "shared_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_analyze=on",
    "auto_explain.log_timing=off",
];

/// Returns what a statement finds in the log, once all is there that was asked before this.
pub(crate) async fn look(client: &Client, sql: &str) -> Vec<Row> {
    // Each look is written down itself, after all before it.
    let is_there = "SELECT pg_read_file(pg_current_logfile()) ~ 'pg_read_file'";
    while !client
        .query_one(is_there, &[])
        .await
        .unwrap()
        .get::<_, bool>(0)
    {}
    client.query(sql, &[]).await.unwrap()
}
