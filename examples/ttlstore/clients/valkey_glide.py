"""valkey-glide with keys that vanish on time, in both protocols: valkey_glide.py PORT"""

import asyncio
import sys
import time
from importlib.metadata import version

from glide import (
    Batch,
    ConditionalChange,
    ExpirySet,
    ExpiryType,
    ExpiryTypeGetEx,
    ExpiryGetEx,
    GlideClient,
    GlideClientConfiguration,
    NodeAddress,
    ProtocolVersion,
    RequestError,
)

PubSub = GlideClientConfiguration.PubSubSubscriptions
Modes = GlideClientConfiguration.PubSubChannelModes
EVENTS = "__keyevent@0__:expired"


async def values(client):
    await client.flushdb()
    now = time.time()
    expiry = ExpirySet(ExpiryType.SEC, 600)
    assert await client.set("a", "1", expiry=expiry) == "OK" and await client.get("a") == b"1"
    assert 0 < await client.pttl("a") <= 600_000
    only_new = ConditionalChange.ONLY_IF_DOES_NOT_EXIST
    assert await client.set("a", "2", conditional_set=only_new) is None
    assert await client.expire("a", 500) and 0 < await client.ttl("a") <= 500
    assert await client.expireat("a", int(now) + 5000) and await client.ttl("a") > 500
    date = int(now * 1000) + 400_000
    assert await client.pexpireat("a", date) and 0 < await client.pttl("a") <= 400_000
    assert await client.getex("a", ExpiryGetEx(ExpiryTypeGetEx.PERSIST, None)) == b"1"
    assert await client.ttl("a") == -1
    assert await client.getex("a", ExpiryGetEx(ExpiryTypeGetEx.UNIX_MILLSEC, date)) == b"1"
    assert 0 < await client.pttl("a") <= 400_000
    assert await client.expireat("a", 1) and await client.getex("a") is None
    for is_atomic in [False, True]:
        batch = Batch(is_atomic)
        batch.mset({"b": "1", "c": "2"}).incr("b").getex("c").mget(["b", "none"]).exists(["b"])
        replies = await client.exec(batch, raise_on_error=True)
        assert replies == ["OK", 2, b"2", [b"2", None], 1], replies
    assert await client.echo("a b") == b"a b" and await client.client_id() > 0
    assert (await client.scan("0"))[0] == b"0" and await client.dbsize() == 2
    try:
        await client.lpush("a", ["1"])
    except RequestError as error:
        assert "unknown command 'LPUSH'" in str(error), error
    else:
        raise AssertionError("this should have been refused")


async def events(client):
    """The event of each key comes after its deadline, though nobody looks at the key."""
    deadlines = {b"soon:%d" % n: int(time.time() * 1000) + 500 + n for n in range(100)}
    for key, deadline in deadlines.items():
        await client.set(key, "value", expiry=ExpirySet(ExpiryType.UNIX_MILLSEC, deadline))
    while deadlines:
        message = await asyncio.wait_for(client.get_pubsub_message(), 60)
        assert time.time() * 1000 >= deadlines.pop(message.message), f"{message} came early"


async def main():
    for protocol in ProtocolVersion:
        client = await GlideClient.create(
            GlideClientConfiguration(
                [NodeAddress("127.0.0.1", int(sys.argv[1]))],
                client_name="e2e",
                protocol=protocol,
                request_timeout=10_000,
                pubsub_subscriptions=PubSub({Modes.Exact: {EVENTS}}, None, None)
                if protocol == ProtocolVersion.RESP3
                else None,
            )
        )
        await values(client)
        if protocol == ProtocolVersion.RESP3:  # It has no messages in RESP2.
            await events(client)
        await client.close()
    print("valkey-glide", version("valkey-glide"))


asyncio.run(main())
