//! A handler's effect by sqlx, in one transaction with the acknowledgement: a process that dies at
//! any point leaves it undone or done once.

#[path = "../../durable/tests/common/server.rs"]
mod server;

use server::Server;
use sqlx::PgPool;
use std::error::Error;
use std::process::Command;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::tables;
use tickwheel_durable::{Due, Durable, Outcome};
use tokio_postgres::config::Host;

const NAMESPACE: &str = "sqlx";
/// Where a process finds the server, and before which of its steps it dies.
const URL: &str = "TICKWHEEL_SQLX_URL";
const DIES: &str = "TICKWHEEL_SQLX_DIES";

/// Pays out what the timer says, once.
async fn pay(pool: &PgPool, due: &Due, dies: &str) -> Result<(), sqlx::Error> {
    let dies = |before| {
        if dies == before {
            std::process::abort()
        }
    };
    let mut transaction = pool.begin().await?;
    sqlx::query("SELECT tickwheel.ack($1, $2, $3)")
        .bind(NAMESPACE)
        .bind(&due.name)
        .bind(due.token)
        .execute(&mut *transaction)
        .await?;
    dies("effect");
    sqlx::query("INSERT INTO paid VALUES ($1)")
        .bind(&due.key)
        .execute(&mut *transaction)
        .await?;
    dies("commit");
    transaction.commit().await?;
    dies("answer");
    Ok(())
}

/// Runs a node until nothing is left, or it dies: the process that the test starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node() -> Result<(), Box<dyn Error>> {
    let (Ok(url), Ok(dies)) = (std::env::var(URL), std::env::var(DIES)) else {
        return Ok(());
    };
    let pool = PgPool::connect(&url).await?;
    let own = pool.clone();
    let timer = Timer::builder().start()?;
    let handler = move |due: Due| {
        let pool = own.clone();
        let dies = dies.clone();
        async move {
            match pay(&pool, &due, &dies).await {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::Failed(error.to_string()),
            }
        }
    };
    let node = Durable::postgres(url.parse()?)
        .namespace(NAMESPACE)
        .lease(Duration::from_secs(1));
    let node = node.start(&timer, handler).await?;
    let left = "SELECT count(*) FROM tickwheel.timer";
    while sqlx::query_scalar::<_, i64>(left).fetch_one(&pool).await? > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.drain().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_by_sqlx_happens_once() -> Result<(), Box<dyn Error>> {
    let server = Server::start(&["fsync=off"])?;
    let config = server.config();
    let [Host::Tcp(host), ..] = config.get_hosts() else {
        panic!("it listens")
    };
    let url = format!(
        "postgres://postgres@{host}:{}/postgres",
        config.get_ports()[0]
    );
    let pool = PgPool::connect(&url).await?;
    sqlx::query("CREATE TABLE paid (key text)")
        .execute(&pool)
        .await?;
    let tables = tables("tickwheel")?;
    sqlx::raw_sql(&tables).execute(&pool).await?;
    for dies in ["effect", "commit", "answer"] {
        sqlx::query("SELECT tickwheel.schedule($1, $2, now(), '')")
            .bind(NAMESPACE)
            .bind(dies)
            .execute(&pool)
            .await?;
        for (dies, lives) in [(dies, false), ("never", true)] {
            let mut process = Command::new(std::env::current_exe()?);
            process
                .args(["--exact", "node"])
                .env(URL, &url)
                .env(DIES, dies);
            let ended = tokio::task::block_in_place(|| process.output())?;
            assert_eq!(ended.status.success(), lives, "{dies}: {ended:?}");
        }
        let paid = "SELECT count(*) FROM paid WHERE key = $1";
        let paid: i64 = sqlx::query_scalar(paid).bind(dies).fetch_one(&pool).await?;
        assert_eq!(paid, 1, "it died before {dies}");
    }
    Ok(())
}
