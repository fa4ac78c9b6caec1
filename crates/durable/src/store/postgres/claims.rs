//! The statements of claims: what begins them, renews them, takes them over, and ends them.

use crate::entry::Error;
use crate::store::postgres::link::{Ask, Param, column, count, place, time};
use crate::store::postgres::timers::{begun, changed, due, few, own, there};
use crate::store::{ALONE, Ack, Changed, Claimed, Claims, Ending, Place, Renewal, Want};
use crate::when::{Moment, StoreTime, micros};
use std::time::Duration;
use tokio_postgres::Row;

/// What a claimed row tells. The names come out of an array: of that the server expects ten rows,
/// and looks each of them up by the primary key.
macro_rules! taken {
    ($set:literal, $which:literal) => {
        concat!(
            "taken AS (
        UPDATE tickwheel.timer t SET claim = greatest(b.now, abs(t.claim) + 1),
            until = b.now + $3, waits_until = NULL, held_from = NULL, ",
            $set,
            " FROM b, unnest(ARRAY(SELECT name FROM judged WHERE ",
            $which,
            ")) AS o(name)
        WHERE t.space = $1 AND t.name = o.name
        RETURNING t.name, t.claim, t.id, t.due, coalesce(t.planned, t.due) AS planned, t.attempts,
            t.crashes, t.tag, t.payload)"
        )
    };
}

/// The answer: a row for the claim as a whole, and the claimed ones.
macro_rules! claims {
    ($next_due:literal, $next_id:literal, $more:literal, $last_due:literal, $last_id:literal) => {
        concat!(
            " SELECT NULL AS name, now, (SELECT count(*) FROM ended), ",
            $next_due,
            ", ",
            $next_id,
            ", 0, 0, (",
            $more,
            ")::int::text, NULL::bytea, ",
            $last_due,
            ", ",
            $last_id,
            " FROM c
    UNION ALL SELECT name, claim, id, due, planned, attempts, crashes, tag, payload, NULL, NULL
        FROM taken"
        )
    };
}

/// `$2`: the limit; `$3`: the lease; `$4`: bytes; `$5`, `$6`: the cursor. The clock is read once to
/// find rows, and again once they are locked: by then the transaction has its number, so that no
/// token is less than the clock was at that. A row that a pause holds, and one that has expired, is
/// one of those that were found. What is cut off by the limit of bytes is left as it is.
///
/// The pauses are locked: one that ends or is shortened meanwhile waits for this claim, and lets go
/// what it puts off. Nothing else would.
const CLAIM: &str = concat!(
    "WITH c AS MATERIALIZED (
        SELECT tickwheel.clock() AS now, (SELECT true FROM tickwheel.pause WHERE space = $1 LIMIT 1)
            IS NOT NULL AS pauses),
    found AS MATERIALIZED (
        SELECT due, id, name, tag, planned, expires, octet_length(payload) AS bytes
        FROM tickwheel.timer
        WHERE space || '' = $1 AND claim <= 0 AND died IS NULL AND (due, id) >= ($5, $6)
            AND due <= (SELECT now FROM c)
        ORDER BY due, id LIMIT $2 FOR UPDATE SKIP LOCKED),
    b AS MATERIALIZED (
        SELECT tickwheel.clock() AS now FROM (SELECT count(*) FROM found) f),
    asked AS MATERIALIZED (
        SELECT f.*, CASE WHEN c.pauses THEN (
                SELECT max(until) FROM (
                    SELECT until FROM tickwheel.pause WHERE space = $1
                    AND scope = ANY (ARRAY['', 't' || f.tag]) AND until > c.now FOR SHARE) p)
                END AS held,
            coalesce(c.now > coalesce(f.planned, f.due) + f.expires, false) AS expired
        FROM found f, c),
    summed AS MATERIALIZED (
        SELECT *, held IS NULL AND NOT expired AS runs, held IS NULL AND NOT expired
            AND count(*) FILTER (WHERE held IS NULL AND NOT expired) OVER w > 0
            AND sum(bytes) FILTER (WHERE held IS NULL AND NOT expired) OVER w + bytes > $4
            AS \"full\"
        FROM asked
        WINDOW w AS (ORDER BY due, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
    judged AS MATERIALIZED (
        SELECT *, coalesce(bool_or(\"full\") OVER (ORDER BY due, id), false) AS cut FROM summed),
    ",
    taken!("attempts = t.attempts + 1", "runs AND NOT cut"),
    ", held AS (
        UPDATE tickwheel.timer t SET held_from = coalesce(t.held_from, t.due), due = o.held,
            planned = coalesce(t.planned, t.due)
        FROM unnest(ARRAY(SELECT name FROM judged WHERE held IS NOT NULL AND NOT cut ORDER BY name),
            ARRAY(SELECT held FROM judged WHERE held IS NOT NULL AND NOT cut ORDER BY name))
            AS o(name, held)
        WHERE t.space = $1 AND t.name = o.name RETURNING t.due, t.id),
    ended AS (
        DELETE FROM tickwheel.timer t
        USING unnest(ARRAY(SELECT name FROM judged WHERE held IS NULL AND expired AND NOT cut))
            AS o(name)
        WHERE t.space = $1 AND t.name = o.name RETURNING 1),
    later AS MATERIALIZED (
        SELECT due, id FROM tickwheel.timer
        WHERE space || '' = $1 AND claim <= 0 AND died IS NULL AND due > (SELECT now FROM c)
        ORDER BY due, id LIMIT 1),
    next AS MATERIALIZED (
        SELECT due, id FROM (SELECT * FROM later UNION ALL SELECT * FROM held) n
        ORDER BY due, id LIMIT 1),
    first_cut AS MATERIALIZED (SELECT due, id FROM judged WHERE cut ORDER BY due, id LIMIT 1),
    last AS MATERIALIZED (SELECT due, id FROM judged ORDER BY due DESC, id DESC LIMIT 1)",
    claims!(
        "(SELECT due FROM next)",
        "(SELECT id FROM next)",
        "EXISTS (SELECT FROM first_cut) OR (SELECT count(*) FROM found) = $2",
        "coalesce((SELECT due FROM first_cut), (SELECT due FROM last))",
        "coalesce((SELECT id FROM first_cut), (SELECT id FROM last))"
    )
);

/// `$2`: the limit; `$3`: the lease; `$4`: bytes; `$5`: crashes; `$6`: the first token that anybody
/// may have; `$7`: as many crashes are those of others. The first row that nobody has locked says
/// from how many crashes on rows are taken. What is set must be no null in the snapshot's version
/// of a row either: the server asks that first, and sees only then that there is a later one.
const TAKE_OVER: &str = concat!(
    "WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now),
    first AS MATERIALIZED (
        SELECT crashes FROM tickwheel.timer
        WHERE space || '' = $1 AND claim > 0 AND ",
    few!("$6"),
    " AND until <= (SELECT now FROM c)
            AND crashes <= $5
        ORDER BY crashes, claim LIMIT 1 FOR UPDATE SKIP LOCKED),
    most AS MATERIALIZED (
        SELECT CASE (SELECT crashes FROM first) WHEN 0 THEN $2 WHEN 1 THEN ($2 + 9) / 10
            ELSE ($2 + 99) / 100 END AS most),
    found AS MATERIALIZED (
        SELECT due, id, claim, name, next, next_id, octet_length(payload) AS bytes,
            coalesce(until <= (SELECT now FROM c)
                AND (SELECT now FROM c) > coalesce(planned, due) + expires, false) AS expired
        FROM tickwheel.timer
        WHERE space || '' = $1 AND claim > 0 AND ",
    few!("$6"),
    " AND until <= (SELECT now FROM c)
            AND crashes = (SELECT crashes FROM first)
        ORDER BY claim LIMIT (SELECT most FROM most) FOR UPDATE SKIP LOCKED),
    b AS MATERIALIZED (
        SELECT CASE WHEN f.found > 0 THEN ",
    begun!(),
    " ELSE (SELECT now FROM c) END AS now FROM (SELECT count(*) AS found FROM found) f),
    summed AS MATERIALIZED (
        SELECT *, next_id IS NULL AND NOT expired AS runs,
            sum(bytes) FILTER (WHERE next_id IS NULL) OVER w AS sum,
            count(*) FILTER (WHERE next_id IS NULL) OVER w AS number
        FROM found WINDOW w AS (ORDER BY claim, name ROWS UNBOUNDED PRECEDING)),
    judged AS MATERIALIZED (
        SELECT *, coalesce(sum > $4 AND number > 1, false) AS cut FROM summed),
    ",
    taken!(
        "crashes = t.crashes + 1, attempts = t.attempts + (t.crashes >= $7)::int",
        "runs AND NOT cut"
    ),
    ", freed AS (
        UPDATE tickwheel.timer t SET claim = -t.claim, attempts = 0, crashes = 0,
            cancelled = false, due = greatest(t.next, b.now), id = coalesce(t.next_id, t.id),
            planned = coalesce(t.planned, t.next), next = NULL, next_id = NULL, held_from = NULL
        FROM b, unnest(ARRAY(SELECT name FROM judged WHERE next IS NOT NULL AND NOT cut)) AS o(name)
        WHERE t.space = $1 AND t.name = o.name RETURNING t.due, t.id),
    gone AS (
        DELETE FROM tickwheel.timer t
        USING unnest(ARRAY(SELECT name FROM judged
            WHERE next IS NULL AND NOT runs AND NOT cut)) AS o(name)
        WHERE t.space = $1 AND t.name = o.name RETURNING t.next_id),
    ended AS (SELECT FROM gone WHERE next_id IS NULL),
    next AS MATERIALIZED (SELECT due, id FROM freed ORDER BY due, id LIMIT 1)",
    claims!(
        "(SELECT due FROM next)",
        "(SELECT id FROM next)",
        "EXISTS (SELECT FROM judged WHERE cut)
            OR (SELECT count(*) FROM found) = (SELECT most FROM most)",
        "NULL::bigint",
        "NULL::bigint"
    )
);

/// The most bytes of payloads that a takeover reads, unless it is one row.
const TAKEN_OVER: i64 = 128 << 10;

/// Claims rows that are due.
pub(super) async fn claim(at: &impl Ask, space: &str, want: &Want) -> Result<Claims, Error> {
    let bytes = i64::try_from(want.bytes).unwrap_or(i64::MAX);
    let params: [&dyn Param; 6] = [
        &space,
        &i64::from(want.limit),
        &micros(want.lease),
        &bytes,
        &want.from.due.as_micros(),
        &want.from.id,
    ];
    let rows = at.ask(CLAIM, &params).await?;
    let mut claims = read(&rows)?;
    let last = rows.iter().find_map(|row| place(row, 9));
    claims.from = match last {
        Some(last) if claims.more => last,
        // All that was due is claimed, or will be found by a look.
        _ => want.from.max(Place::before(claims.now)),
    };
    Ok(claims)
}

/// Takes over claims that have run out, of tokens from `floor` on.
pub(super) async fn take_over(
    at: &impl Ask,
    space: &str,
    floor: i64,
    (most, limit): (u32, u32),
    lease: Duration,
) -> Result<Claims, Error> {
    let params: [&dyn Param; 7] = [
        &space,
        &i64::from(limit),
        &micros(lease),
        &TAKEN_OVER,
        &i32::try_from(most).unwrap_or(i32::MAX),
        &floor,
        &(ALONE as i32),
    ];
    read(&at.ask(TAKE_OVER, &params).await?)
}

fn read(rows: &[Row]) -> Result<Claims, Error> {
    let of_all = |row: &&Row| row.get::<_, Option<&str>>(0).is_none();
    let whole = rows.iter().find(of_all);
    let whole = whole.ok_or_else(|| Error::uncertain("no row"))?;
    let claimed = rows.iter().filter(|row| !of_all(row)).map(|row| Claimed {
        name: crate::store::Name(row.get(0)),
        token: row.get(1),
        id: row.get(2),
        due: time(row, 3),
        planned: time(row, 4),
        attempts: count(row, 5),
        crashes: count(row, 6),
        tag: row.get(7),
        payload: row.get(8),
    });
    let mut claimed: Vec<Claimed> = claimed.collect();
    claimed.sort_unstable_by_key(|claimed| (claimed.due, claimed.id));
    Ok(Claims {
        now: time(whole, 1),
        rows: claimed,
        from: Place::default(),
        more: whole.get::<_, &str>(7) == "1",
        next: place(whole, 3),
        expired: whole.get::<_, i64>(2).unsigned_abs(),
    })
}

/// The answers of claims that are another's by now, or whose rows have ended.
macro_rules! fenced {
    () => {
        concat!(
            "UNION ALL SELECT n, NULL, NULL, false FROM own WHERE claim <> token
    UNION ALL SELECT n, NULL, NULL, false FROM own o WHERE claim IS NULL AND ",
            there!(),
            " IS NULL"
        )
    };
}

const RENEW: &str = concat!(
    "WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now),
    input AS MATERIALIZED (
        SELECT * FROM unnest((SELECT $2), (SELECT $3), (SELECT $4))
            WITH ORDINALITY AS i(name, token, term, n)),
    ",
    own!("claim"),
    ", renewed AS (
        UPDATE tickwheel.timer t SET until = c.now + o.term FROM c, own o
        WHERE t.space = $1 AND t.name = o.name AND o.claim = o.token RETURNING o.n)
    SELECT 0::bigint, now, NULL::bigint, NULL::boolean FROM c
    UNION ALL SELECT n, NULL, NULL, true FROM renewed
    ",
    fenced!()
);

/// Renews claims.
pub(super) async fn renew(
    at: &impl Ask,
    space: &str,
    renewals: &[Renewal],
) -> Result<Changed<bool>, Error> {
    let params: [&dyn Param; 4] = [
        &space,
        &column(renewals, |it| it.name.0.as_str()),
        &column(renewals, |it| it.token),
        &column(renewals, |it| micros(it.term)),
    ];
    let rows = at.ask(RENEW, &params).await?;
    Ok(changed(&rows, renewals.len(), |row| row.get(3)))
}

/// Kinds of endings, as the statement calls them.
const DONE: i32 = 0;
const RETRY: i32 = 1;
const AGAIN: i32 = 2;
const DEAD: i32 = 3;
const GIVE_BACK: i32 = 4;
const PUT_BACK: i32 = 5;

/// What waits for the end of the run takes the timer's place, whatever its outcome; where that was
/// cancelled, the row ends.
const ACKNOWLEDGE: &str = concat!(
    "WITH c AS MATERIALIZED (SELECT ",
    begun!(),
    " AS now),
    input AS MATERIALIZED (
        SELECT i.n, i.name, i.token, i.kind, ",
    due!(),
    " AS moment, i.planned, i.payload, i.reason
        FROM c, unnest((SELECT $2), (SELECT $3), (SELECT $4), (SELECT $5), (SELECT $6),
            (SELECT $7), (SELECT $8), (SELECT $9)) WITH ORDINALITY
            AS i(name, token, kind, at, after, planned, payload, reason, n)),
    ",
    own!(
        "claim, next, next_id, next IS NULL AND next_id IS NULL AS alone, next IS NULL
            AND (next_id IS NOT NULL OR i.kind = 0 OR cancelled AND i.kind NOT IN (4, 5)) AS ends"
    ),
    ", gone AS (
        DELETE FROM tickwheel.timer t USING own o
        WHERE t.space = $1 AND t.name = o.name AND o.claim = o.token AND o.ends RETURNING o.n),
    kept AS (
        UPDATE tickwheel.timer t SET
            claim = -t.claim, next = NULL, next_id = NULL,
            due = CASE WHEN NOT o.alone THEN greatest(o.next, c.now) WHEN o.kind = 3 THEN t.due
                WHEN o.kind = 4 THEN greatest(t.due, c.now) ELSE o.moment END,
            id = CASE WHEN o.alone THEN t.id ELSE o.next_id END,
            planned = CASE WHEN NOT o.alone THEN coalesce(t.planned, o.next)
                WHEN o.kind = 2 THEN o.planned ELSE coalesce(t.planned, t.due) END,
            payload = CASE WHEN o.alone AND o.kind = 2 THEN o.payload ELSE t.payload END,
            attempts = CASE WHEN NOT o.alone OR o.kind = 2 THEN 0
                WHEN o.kind = 4 THEN t.attempts - 1 ELSE t.attempts END,
            crashes = CASE WHEN o.alone AND o.kind IN (3, 4) THEN t.crashes ELSE 0 END,
            cancelled = o.alone AND t.cancelled,
            name = CASE WHEN o.alone AND o.kind = 3 THEN 'd' || lpad(to_hex(t.id), 16, '0')
                ELSE t.name END,
            former = CASE WHEN o.alone AND o.kind = 3 THEN t.name END,
            died = CASE WHEN o.alone AND o.kind = 3 THEN c.now END,
            reason = CASE WHEN o.alone AND o.kind = 3 THEN o.reason END
        FROM c, own o
        WHERE t.space = $1 AND t.name = o.name AND o.claim = o.token AND NOT o.ends
        RETURNING o.n, CASE WHEN t.died IS NULL THEN t.due END AS due,
            CASE WHEN t.died IS NULL THEN t.id END AS id)
    SELECT 0::bigint, now, NULL::bigint, NULL::boolean FROM c
    UNION ALL SELECT n, NULL, NULL, true FROM gone
    UNION ALL SELECT n, due, id, true FROM kept
    ",
    fenced!()
);

/// Ends claims.
pub(super) async fn acknowledge(
    at: &impl Ask,
    space: &str,
    acks: &[Ack],
) -> Result<Changed<bool>, Error> {
    ask_acknowledge(at, ACKNOWLEDGE, space, acks).await
}

async fn ask_acknowledge(
    at: &impl Ask,
    sql: &str,
    space: &str,
    acks: &[Ack],
) -> Result<Changed<bool>, Error> {
    let kind = |ack: &Ack| match ack.ending {
        Ending::Done => DONE,
        Ending::Retry(_) => RETRY,
        Ending::Again(..) => AGAIN,
        Ending::Dead(_) => DEAD,
        Ending::GiveBack => GIVE_BACK,
        Ending::PutBack(_) => PUT_BACK,
    };
    let moment = |ack: &Ack| match ack.ending {
        Ending::Retry(moment) | Ending::Again(moment, _) => moment,
        Ending::PutBack(after) => Moment {
            after,
            ..Moment::default()
        },
        _ => Moment::default(),
    };
    fn payload(ack: &Ack) -> Option<&[u8]> {
        match &ack.ending {
            Ending::Again(_, payload) => Some(payload),
            _ => None,
        }
    }
    fn reason(ack: &Ack) -> Option<&str> {
        match &ack.ending {
            Ending::Dead(reason) => Some(reason),
            _ => None,
        }
    }
    let params: [&dyn Param; 9] = [
        &space,
        &column(acks, |ack| ack.name.0.as_str()),
        &column(acks, |ack| ack.token),
        &column(acks, kind),
        &column(acks, |ack| moment(ack).at.as_micros()),
        &column(acks, |ack| micros(moment(ack).after)),
        &column(acks, |ack| moment(ack).planned.map(StoreTime::as_micros)),
        &column(acks, payload),
        &column(acks, reason),
    ];
    let rows = at.ask(sql, &params).await?;
    Ok(changed(&rows, acks.len(), |row| row.get(3)))
}

/// Ends a claim as done inside a transaction of a user's, and waits for who has the row locked:
/// only then it is known whose it is.
pub(super) async fn acknowledge_in(at: &impl Ask, space: &str, ack: Ack) -> Result<bool, Error> {
    let sql = ACKNOWLEDGE.replace(" SKIP LOCKED", "");
    let acks = [ack];
    // As for a cancel.
    loop {
        let changed = ask_acknowledge(at, &sql, space, &acks).await?;
        if let Some(answer) = changed.answers.into_iter().next().flatten() {
            return Ok(answer);
        }
    }
}
