//! What others do: pollers that lock what is due, pass over each other's, and delete it.

use crate::server::{Server, connect};
use std::error::Error;
use std::time::Instant;
use tokio_postgres::types::Type;

/// As many pollers as a node has claimers, with batches of the same size.
const POLLERS: usize = 2;

/// Fills the timer table, and drains it; returns timers a second, without the filling.
pub(crate) async fn drain(server: &Server, timers: u64) -> Result<f64, Box<dyn Error>> {
    let client = connect(&server.config()).await?;
    let fill = "INSERT INTO tickwheel.timer (slot, due, id, payload)
        SELECT -1 - n % 1024, n, n, decode(repeat('07', 100), 'hex')
        FROM generate_series(1, $1) AS n";
    client.query_typed(fill, &[(&(timers as i64), Type::INT8)]).await?;
    client
        .batch_execute("ANALYZE tickwheel.timer; CREATE INDEX poll ON tickwheel.timer (due)")
        .await?;
    let begun = Instant::now();
    let mut pollers = tokio::task::JoinSet::new();
    for _ in 0..POLLERS {
        let client = connect(&server.config()).await?;
        pollers.spawn(async move {
            let claim = "UPDATE tickwheel.timer SET claim = 1, attempts = attempts + 1
                WHERE (slot, due, id) IN (SELECT slot, due, id FROM tickwheel.timer
                    WHERE slot < 0 AND claim = 0 AND due <= tickwheel.clock()
                    ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED)
                RETURNING slot, due, id, payload";
            let done = "DELETE FROM tickwheel.timer t USING unnest($1, $2, $3) AS i(slot, due, id)
                WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id";
            loop {
                let rows = client.query_typed(claim, &[]).await?;
                if rows.is_empty() {
                    return Ok::<(), tokio_postgres::Error>(());
                }
                let slots: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
                let dues: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
                let ids: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
                let params = [
                    (&slots as _, Type::INT4_ARRAY),
                    (&dues as _, Type::INT8_ARRAY),
                    (&ids as _, Type::INT8_ARRAY),
                ];
                client.query_typed(done, &params).await?;
            }
        });
    }
    while let Some(ended) = pollers.join_next().await {
        ended??;
    }
    let rate = timers as f64 / begun.elapsed().as_secs_f64();
    client.batch_execute("DROP INDEX tickwheel.poll").await?;
    Ok(rate)
}
