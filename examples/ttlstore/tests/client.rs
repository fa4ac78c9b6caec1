//! What the `redis` crate does beside single commands, in both protocols.

mod common;

use common::{PATIENCE, Server, connect};
use redis::{Commands, RedisResult};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn pipelines() {
    let server = Server::real();
    for protocol in [2, 3] {
        let mut client = connect(server.address.port(), protocol);
        let mut pipe = redis::pipe();
        pipe.set("a", 1).ignore().incr("a", 41).get("a").pttl("none");
        assert_eq!(pipe.query::<(i64, i64, i64)>(&mut client).unwrap(), (42, 42, -2));
        let mut atomic = redis::pipe();
        atomic.atomic().set_ex("b", "x", 100).ignore().get("b").ttl("b");
        let (value, ttl): (String, i64) = atomic.query(&mut client).unwrap();
        assert!(value == "x" && (99..=100).contains(&ttl), "{value} {ttl}");
        // One is refused, and the others have happened.
        let refused: RedisResult<()> = redis::pipe().incr("b", 1).set("b", "y").query(&mut client);
        assert!(refused.is_err());
        assert_eq!(client.get::<_, String>("b").unwrap(), "y");
    }
}

/// Eight clients add to one number, each until nobody has come between.
#[test]
fn transactions() {
    let server = Server::real();
    thread::scope(|scope| {
        for client in 0..8 {
            let mut client = connect(server.address.port(), 2 + client % 2);
            scope.spawn(move || {
                for _ in 0..20 {
                    redis::transaction(&mut client, &["count"], |client, pipe| {
                        let count: i64 = client.get::<_, Option<i64>>("count")?.unwrap_or(0);
                        pipe.set("count", count + 1).query::<Option<()>>(client)
                    })
                    .expect("nothing else fails");
                }
            });
        }
    });
    assert_eq!(server.client().get::<_, i64>("count").unwrap(), 160);
}

/// One client sets a hundred keys to the same number, again and again; another never sees two.
#[test]
fn nothing_comes_between() {
    let server = Server::real();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut writer = server.client();
        let ends = &is_over;
        scope.spawn(move || {
            for number in 0.. {
                let mut pipe = redis::pipe();
                pipe.atomic();
                for key in 0..1000 {
                    pipe.set(key, number).ignore();
                }
                pipe.exec(&mut writer).expect("a reply");
                if ends.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut reader = server.client();
        let mut pipe = redis::pipe();
        pipe.atomic();
        for key in 0..1000 {
            pipe.get(key);
        }
        type Seen = RedisResult<BTreeSet<Option<u64>>>;
        let seen: Vec<Seen> = (0..200).map(|_| pipe.query(&mut reader)).collect();
        is_over.store(true, Ordering::Relaxed);
        for numbers in seen {
            assert_eq!(numbers.as_ref().map(BTreeSet::len), Ok(1), "{numbers:?}");
        }
    });
}

#[test]
fn scans() {
    let server = Server::real();
    let mut client = server.client();
    let keys: BTreeSet<String> = (0..5000).map(|number| format!("key:{number}")).collect();
    for key in &keys {
        client.set::<_, _, ()>(key, 1).unwrap();
    }
    client.set::<_, _, ()>("other", 1).unwrap();
    for protocol in [2, 3] {
        let mut client = connect(server.address.port(), protocol);
        let found: RedisResult<BTreeSet<String>> = client.scan_match("key:*").unwrap().collect();
        assert!(found.unwrap() == keys);
    }
}

#[test]
fn patterns() {
    let server = Server::real();
    let mut client = server.client();
    let mut listener = server.client();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut messages = listener.as_pubsub();
    messages.psubscribe("__key*:expired").unwrap();
    for key in ["first", "second"] {
        client.pset_ex::<_, _, ()>(key, "v", 20).unwrap();
    }
    let heard = BTreeSet::from([(); 2].map(|()| {
        let message = messages.get_message().unwrap();
        assert_eq!(message.get_channel_name(), "__keyevent@0__:expired");
        message.get_payload::<String>().unwrap()
    }));
    assert_eq!(heard, BTreeSet::from(["first".to_owned(), "second".to_owned()]));
}
