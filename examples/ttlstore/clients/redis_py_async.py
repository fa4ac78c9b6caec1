"""redis-py's asyncio on a server whose keys vanish on time: python3 redis_py_async.py PORT"""

import asyncio
import sys
import time

import redis
import redis.asyncio

port = int(sys.argv[1])


async def transactions(client):
    await client.flushall()
    async with client.pipeline() as pipe:  # With MULTI and EXEC, unless it is told otherwise.
        assert await pipe.set("a", "1").incr("a").get("a").execute() == [True, 2, b"2"]
        try:
            await pipe.set("b", "x").incr("b").execute()
        except redis.ResponseError as error:
            assert "not an integer" in str(error), error
        else:
            raise AssertionError("this should have been refused")
        await pipe.watch("a")
        await client.set("a", "changed")
        pipe.multi()
        pipe.set("a", "mine")
        try:
            await pipe.execute()
        except redis.WatchError:
            pass
        else:
            raise AssertionError("the change was not seen")
    assert await client.get("a") == b"changed" and await client.get("b") == b"x"

    async def count(_):
        async def add(pipe):
            value = int(await pipe.get("count") or 0)
            pipe.multi()
            pipe.set("count", value + 1)

        await client.transaction(add, "count")

    # Each tries until nobody has come between.
    await asyncio.gather(*map(count, range(20)))
    assert await client.get("count") == b"20"


async def keys(client):
    assert await client.mset({f"key:{n}": n for n in range(2000)})
    found = [key async for key in client.scan_iter("key:*", count=100)]
    assert len(found) == 2000 == len(set(found))
    assert await client.randomkey() in {*found, b"a", b"b", b"count"}
    assert await client.rename("key:1", "moved") and await client.getdel("moved") == b"1"
    assert await client.unlink(*found) == 1999 and await client.type("a") in (b"string", "string")
    assert len(await client.client_list()) >= 1


async def events(client):
    async with client.pubsub() as pubsub:
        await pubsub.psubscribe("__key*__:expired")
        deadline = int(time.time() * 1000) + 200
        await client.set("soon", "v", pxat=deadline)
        async for message in pubsub.listen():
            if message["type"] == "pmessage":
                assert message["data"] == b"soon" and time.time() * 1000 >= deadline
                return


async def main():
    for protocol in [2, 3]:
        async with redis.asyncio.Redis(port=port, protocol=protocol) as client:
            await transactions(client)
            await keys(client)
            await events(client)
    what = "pipelines and transactions, 20 of which compete for a key; SCAN of 2,000 keys; patterns"
    print(f"| redis-py's asyncio | {redis.__version__} | {what}, in RESP2 and RESP3 |")


asyncio.run(main())
