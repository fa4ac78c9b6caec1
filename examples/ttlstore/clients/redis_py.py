"""redis-py with keys that vanish on time, in both protocols: python3 redis_py.py PORT"""

import sys
import time

import redis
import redlock


def values(client):
    client.flushdb()
    assert client.set("a", "1", px=60_000)
    assert client.get("a") == b"1" and 0 < client.pttl("a") <= 60_000
    assert client.set("a", "2", nx=True) is None
    assert client.set("a", "2", xx=True, keepttl=True, get=True) == b"1"
    assert 0 < client.ttl("a") <= 60 and client.persist("a") and client.ttl("a") == -1
    assert client.incr("a", 40) == 42 and client.expire("a", 5) and client.exists("a", "b") == 1
    with client.pipeline() as pipe:  # With MULTI and EXEC.
        pipe.mset({f"key:{n}": n for n in range(2000)}).get("key:7")
        assert pipe.execute() == [True, b"7"]
    keys = list(client.scan_iter("key:*", count=100))
    assert len(keys) == len(set(keys)) == 2000 == client.dbsize() - 1
    for call in [lambda: client.lpush("a", 1), lambda: client.set("a", 1, ex=-1)]:
        try:
            call()
        except redis.ResponseError as error:
            assert "unknown command 'LPUSH'" in str(error) or "invalid expire time" in str(error)
        else:
            raise AssertionError("this should have been refused")
    assert client.info()["expire_lag_percentiles_usec"]["p50"] >= 0


def locks(client):
    """Only the holder of a lock releases it, with each library."""
    lock, other = client.lock("lock", timeout=60), client.lock("lock", timeout=60)
    assert lock.acquire(blocking=False) and not other.acquire(blocking=False)
    other.local.token = b"other"
    try:
        other.release()
    except redis.exceptions.LockNotOwnedError:
        lock.release()
    else:
        raise AssertionError("another holder released the lock")
    assert not client.exists("lock")
    manager = redlock.Redlock([client])
    held = manager.lock("lock", 60_000)
    manager.unlock(held._replace(key="other"))
    assert client.get("lock") == held.key
    manager.unlock(held)
    assert not client.exists("lock")


def events(client):
    """Each key's event comes after its deadline, though nobody looks at the key."""
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("__keyevent@0__:expired")
        pubsub.get_message(timeout=5)
        deadlines = {b"soon:%d" % n: int(time.time() * 1000) + 1000 + n for n in range(100)}
        for key, deadline in deadlines.items():
            client.set(key, "value", pxat=deadline)
        while deadlines:
            message = pubsub.get_message(timeout=60)
            assert time.time() * 1000 >= deadlines.pop(message["data"]), f"{message} came early"
        assert client.dbsize() == 2001


for protocol in [2, 3]:
    with redis.Redis(port=int(sys.argv[1]), protocol=protocol, client_name="e2e") as client:
        values(client)
        locks(client)
        events(client)
print("redis-py", redis.__version__)
