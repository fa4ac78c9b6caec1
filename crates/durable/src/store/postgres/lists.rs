//! The statements that look timers up and list them.

use crate::entry::{DeadTimer, Error, Listed, Search};
use crate::store::Name;
use crate::store::postgres::link::{Ask, Param, count, field, time};
use tokio_postgres::Row;

/// Returns the rows that a search reads: those with the tag or the prefix, if the search has one,
/// as they may be few of many. The planner moves no further condition into a subquery with an
/// `OFFSET`, and so takes no other index.
fn source(search: &Search) -> &'static str {
    match (&search.tag, &search.prefix) {
        (Some(_), _) => {
            "(SELECT * FROM tickwheel.timer WHERE tag = $4 AND space || '' = $1 OFFSET 0)"
        }
        (None, Some(_)) => {
            // The upper bound is longer than any key: more of the greatest character than one has.
            "(SELECT * FROM tickwheel.timer WHERE space = $1 AND name >= 'k' || $5
                AND name < 'k' || $5 || repeat(chr(1114111), 129) OFFSET 0)"
        }
        (None, None) => "tickwheel.timer",
    }
}

/// The conditions of all searches.
const FITS: &str = "space || '' = $1 AND ($4 IS NULL OR tag = $4)
    AND ($5 IS NULL OR starts_with(coalesce(former, name), 'k' || $5))";

/// Any token. The planner expects few rows between bounds that come from subqueries, and therefore
/// takes the index of claims, also if all rows are claimed.
const FEW: &str = "claim >= (SELECT 0::bigint) AND claim <= (SELECT 9223372036854775807)";

/// The columns of a timer. If a later timer waits for the end of the run, they are those of that
/// timer.
const LISTED: &str = "coalesce(next, due) AS at,
    CASE WHEN next IS NULL THEN id ELSE next_id END AS number, name, tag, payload,
    CASE WHEN next IS NULL THEN attempts ELSE 0 END, claim > 0";

fn listed(row: &Row) -> Result<Listed, Error> {
    Ok(Listed {
        at: time(row, 0)?,
        id: field(row, 1)?,
        key: Name(field(row, 2)?).key().map(str::to_owned),
        tag: field(row, 3)?,
        payload: field(row, 4)?,
        attempts: count(row, 5)?,
        running: field(row, 6)?,
    })
}

/// Looks a name up.
pub(super) async fn get(at: &impl Ask, name: &Name) -> Result<Option<Listed>, Error> {
    let sql = format!(
        "SELECT {LISTED} FROM tickwheel.timer WHERE space = $1 AND name = $2 AND died IS NULL"
    );
    let rows = at.ask(&sql, &[&name.0.as_str()]).await?;
    rows.first().map(listed).transpose()
}

async fn page(at: &impl Ask, search: &Search, sql: &str) -> Result<Vec<Row>, Error> {
    let params: [&dyn Param; 5] = [
        &search.after.due.as_micros(),
        &search.after.id,
        &search.tag,
        &search.prefix,
        &i64::from(search.limit),
    ];
    at.ask(sql, &params).await
}

/// Lists timers in the order of their places. Free timers are read in that order by their index.
/// Timers that handlers have are few: all of them are read and sorted.
pub(super) async fn list(at: &impl Ask, search: Search) -> Result<Vec<Listed>, Error> {
    let source = source(&search);
    let free = format!(
        "(SELECT {LISTED} FROM {source} s
        WHERE {FITS} AND claim <= 0 AND died IS NULL AND (due, id) > ($2, $3)
        ORDER BY due, id LIMIT $6)"
    );
    let claimed = format!(
        "(SELECT {LISTED} FROM {source} s
        WHERE {FITS} AND claim > 0 AND {FEW}
            AND (coalesce(next, due), CASE WHEN next IS NULL THEN id ELSE next_id END) > ($2, $3)
        ORDER BY 1, 2 LIMIT $6)"
    );
    let sql = format!("SELECT * FROM ({free} UNION ALL {claimed}) a ORDER BY at, number LIMIT $6");
    let rows = page(at, &search, &sql).await?;
    rows.iter().map(listed).collect()
}

/// Lists dead timers in the order of their deaths.
pub(super) async fn dead(at: &impl Ask, search: Search) -> Result<Vec<DeadTimer>, Error> {
    let source = match search.tag {
        Some(_) => source(&search),
        None => "tickwheel.timer", // No index has the keys of dead timers.
    };
    let sql = format!(
        "SELECT died, id, former, tag, payload, attempts, reason FROM {source} s
        WHERE {FITS} AND died IS NOT NULL AND (died, id) > ($2, $3)
        ORDER BY died, id LIMIT $6"
    );
    let dead = |row: &Row| {
        Ok(DeadTimer {
            died: time(row, 0)?,
            id: field(row, 1)?,
            key: Name(field(row, 2)?).key().map(str::to_owned),
            tag: field(row, 3)?,
            payload: field(row, 4)?,
            attempts: count(row, 5)?,
            reason: field(row, 6)?,
        })
    };
    let rows = page(at, &search, &sql).await?;
    rows.iter().map(dead).collect()
}
