//! The crate `redis` with keys that vanish on time, in both protocols: redis_rs PORT

use redis::{Commands, Connection, RedisResult};
use std::collections::BTreeSet;
use std::env;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let port = env::args().nth(1).ok_or("redis_rs PORT")?;
    for protocol in ["resp2", "resp3"] {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/?protocol={protocol}"))?;
        values(&mut client.get_connection()?)?;
        events(&mut client.get_connection()?, &mut client.get_connection()?)?;
    }
    println!("the crate redis");
    Ok(())
}

fn values(client: &mut Connection) -> Result<(), Box<dyn Error>> {
    redis::cmd("FLUSHDB").exec(client)?;
    let mut pipe = redis::pipe();
    pipe.set("a", 1).ignore().incr("a", 41).get("a").pttl("none");
    assert_eq!(pipe.query::<(i64, i64, i64)>(client)?, (42, 42, -2));
    let mut atomic = redis::pipe();
    atomic.atomic().set_ex("b", "x", 100).ignore().get("b").ttl("b");
    let (value, ttl): (String, i64) = atomic.query(client)?;
    assert!(value == "x" && (1..=100).contains(&ttl), "{value} {ttl}");
    let keys: BTreeSet<String> = client.scan_match("?")?.collect::<RedisResult<_>>()?;
    assert_eq!(keys, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    let refused = client.lpush::<_, _, ()>("a", 1).expect_err("there are no lists");
    assert!(refused.to_string().contains("unknown command"), "{refused}");
    Ok(())
}

fn events(client: &mut Connection, listener: &mut Connection) -> Result<(), Box<dyn Error>> {
    let mut events = listener.as_pubsub();
    events.psubscribe("__key*:expired")?;
    client.pset_ex::<_, _, ()>("soon", "v", 20)?;
    let event = events.get_message()?;
    assert_eq!(event.get_channel_name(), "__keyevent@0__:expired");
    assert_eq!(event.get_payload::<String>()?, "soon");
    assert!(!client.exists::<_, bool>("soon")?);
    Ok(())
}
