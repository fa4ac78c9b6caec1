//! A guide: an order and the timer of its payment, which are written, and ended, together.
//!
//! Both lie in one file, so they change in one transaction: there is no order without its timer,
//! and what is paid does not expire. On PostgreSQL the same is done by `schedule_in`, `cancel_in`
//! and `ack_in`.
//!
//! Whoever ends an order asks first what becomes of the timer, and then changes the row, so that
//! two of them never wait for each other; and changes only a row that is still open, because a
//! payment may come while the handler runs (`Running`).

use std::error::Error;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::sqlite::{Sqlite, Transaction};
use tickwheel_durable::{Due, Durable, Entry, Error as DurableError, Outcome};

type Node = Durable<Sqlite>;

/// Returns whether the order was open.
fn end(own: &Transaction<'_>, order: &str, state: &str) -> Result<bool, DurableError> {
    let update = "UPDATE orders SET state = ?2 WHERE name = ?1 AND state = 'open'";
    Ok(own.connection().execute(update, [order, state])? == 1)
}

async fn place(node: &Node, order: &'static str) -> Result<(), DurableError> {
    node.transact(move |own| {
        own.schedule(Entry::keyed(order, Duration::from_millis(200), ""))?;
        own.connection()
            .execute("INSERT INTO orders VALUES (?, 'open')", [order])?;
        Ok(())
    })
    .await
}

/// Returns whether the payment was in time.
async fn pay(node: &Node, order: &'static str) -> Result<bool, DurableError> {
    node.transact(move |own| {
        own.cancel(order)?;
        end(own, order, "paid")
    })
    .await
}

/// Has an order expire, in the transaction that acknowledges its timer: once, whatever fails.
async fn expire(due: Due) -> Outcome {
    let Some(node) = due.node::<Sqlite>() else {
        return Outcome::Failed("the node has gone".to_owned());
    };
    let expired = node.transact(move |own| {
        own.ack(&due)?;
        end(own, due.key.as_deref().unwrap_or_default(), "expired")
    });
    match expired.await {
        Ok(_) => Outcome::Done,
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

async fn state(node: &Node, order: &'static str) -> Result<String, DurableError> {
    let select = "SELECT state FROM orders WHERE name = ?";
    node.transact(move |own| {
        Ok(own
            .connection()
            .query_row(select, [order], |row| row.get(0))?)
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let timer = Timer::builder().start()?;
    let node = Durable::sqlite(folder.path().join("orders"))
        .start(&timer, expire)
        .await?;
    let table = "CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY, state TEXT)";
    node.transact(|own| Ok::<_, DurableError>(own.connection().execute_batch(table)?))
        .await?;

    place(&node, "order 7").await?;
    place(&node, "order 8").await?;
    // There is such an order: the transaction fails, and so its timer stays as it was.
    println!("again: {}", place(&node, "order 8").await.unwrap_err());
    println!("order 7 was paid in time: {}", pay(&node, "order 7").await?);
    while node.get("order 8").await?.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("order 8 was paid in time: {}", pay(&node, "order 8").await?);
    assert_eq!(
        (
            state(&node, "order 7").await?,
            state(&node, "order 8").await?
        ),
        ("paid".to_owned(), "expired".to_owned())
    );
    node.drain().await;
    Ok(())
}
