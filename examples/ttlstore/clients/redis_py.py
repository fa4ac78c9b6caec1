"""redis-py on a server whose keys vanish on time, in both protocols: python3 redis_py.py PORT"""

import sys
import time

import redis

port = int(sys.argv[1])


def strings(client):
    client.flushall()
    assert client.set("a", "1", px=60_000)
    assert client.get("a") == b"1" and 59_000 < client.pttl("a") <= 60_000
    assert client.set("a", "2", nx=True) is None
    assert client.set("a", "2", xx=True, keepttl=True, get=True) == b"1"
    assert 58 < client.ttl("a") <= 60
    date = int(time.time()) + 1000
    assert client.expireat("a", date) and client.expiretime("a") == date
    assert not client.expire("a", 5, gt=True) and client.expire("a", 5, lt=True)
    assert client.getex("a", persist=True) == b"2" and client.ttl("a") == -1
    assert client.persist("a") is False and client.ttl("none") == -2
    assert client.exists("a", "a", "none") == 2 and client.keys("[a-b]") == [b"a"]
    assert client.delete("a", "none") == 1 and client.dbsize() == 0
    for call in [lambda: client.lpush("a", 1), lambda: client.set("a", 1, ex=-1)]:
        try:
            call()
        except redis.ResponseError as error:
            assert "unknown command" in str(error) or "invalid expire time" in str(error), error
        else:
            raise AssertionError("this should have been refused")
    assert client.info("stats")["total_commands_processed"] > 10


def events(client):
    """Keys vanish on time: the event comes, and DBSIZE falls, though nobody looks at them."""
    with client.pubsub() as pubsub:
        pubsub.subscribe("__keyevent@0__:expired")
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        deadlines = {f"key:{n}".encode(): int(time.time() * 1000) + 2000 + 5 * n for n in range(100)}
        for key, deadline in deadlines.items():
            client.set(key, "value", pxat=deadline)
        assert client.dbsize() == 100
        worst = 0.0
        while deadlines:
            message = pubsub.get_message(timeout=5)
            late = time.time() * 1000 - deadlines.pop(message["data"])
            assert late >= 0, f"{message} came early"
            worst = max(worst, late)
        assert client.dbsize() == 0
        return worst


for protocol in [2, 3]:
    with redis.Redis(port=port, protocol=protocol) as client:
        strings(client)
        worst = events(client)
        print(f"RESP{protocol}: at most {worst:.1f} ms late")
print(f"| redis-py | {redis.__version__} | values, deadlines and events, in RESP2 and RESP3 |")
