"""aiokafka: produce, consume, park, join, acks, begin."""

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from clients import tell

verb, broker, topic, *arguments = sys.argv[1:]


async def produce(count, partitions):
    async with AIOKafkaProducer(
        bootstrap_servers=broker, linger_ms=20, max_batch_size=65536, enable_idempotence=True,
    ) as sender:
        # One at a time costs a task each: so whole batches.
        for part in range(partitions):
            numbers = iter(range(part, count, partitions))
            number = next(numbers, None)
            sent = []
            while number is not None:
                batch = sender.create_batch()
                while number is not None and batch.append(
                    key=None, value=str(number).encode(), timestamp=None,
                ):
                    number = next(numbers, None)
                sent.append(await sender.send_batch(batch, topic, partition=part))
            await asyncio.gather(*sent)
    tell("produced", count=count)


async def consume(count, partitions):
    reader = AIOKafkaConsumer(bootstrap_servers=broker)
    await reader.start()
    parts = [TopicPartition(topic, part) for part in range(partitions)]
    reader.assign(parts)
    await reader.seek_to_beginning(*parts)
    seen = [[] for _ in range(partitions)]
    missing = count
    while missing:
        records = await reader.getmany(timeout_ms=20000)
        assert records, f"{missing} are missing"
        for part, messages in records.items():
            seen[part.partition].extend(int(message.value) for message in messages)
            missing -= len(messages)
    tell("consumed", seen=[numbers == list(range(part, count, partitions))
                           for part, numbers in enumerate(seen)], count=sum(map(len, seen)))
    await reader.stop()


async def park(max_wait_ms, _consumers):
    """Says when it gets the first message."""
    reader = AIOKafkaConsumer(
        bootstrap_servers=broker, fetch_max_wait_ms=max_wait_ms,
        request_timeout_ms=max_wait_ms + 30000, auto_offset_reset="earliest",
    )
    await reader.start()
    part = TopicPartition(topic, 0)
    reader.assign([part])
    await reader.seek_to_beginning(part)
    tell("parked")
    await reader.getone()
    tell("got")
    tell("done")


class Held(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked):
        pass

    def on_partitions_assigned(self, assigned):
        tell("assigned", partitions=len(assigned))


async def join(group, session_ms):
    """Says what is assigned to it, each time; for ever."""
    reader = AIOKafkaConsumer(
        bootstrap_servers=broker, group_id=group, session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 6, auto_offset_reset="earliest",
    )
    await reader.start()
    reader.subscribe([topic], listener=Held())
    while True:
        await reader.getmany(timeout_ms=200)


async def acks(timeout_ms):
    """One message with acks=all. Says what became of it."""
    async with AIOKafkaProducer(
        bootstrap_servers=broker, acks="all", request_timeout_ms=timeout_ms,
    ) as sender:
        await sender.partitions_for(topic)
        begun = time.monotonic()
        try:
            await sender.send_and_wait(topic, b"acks", partition=0)
            code = 0
        except KafkaError as error:
            code = error.errno
        tell("answered", code=code, seconds=time.monotonic() - begun)


async def begin():
    """Begins a transaction. Says what it is told, and when."""
    begun = time.monotonic()
    told = None
    try:
        sender = AIOKafkaProducer(bootstrap_servers=broker, transactional_id="transfer")
        await sender.start()
        await sender.begin_transaction()
    except KafkaError as error:
        told = str(error)
    tell("refused", told=told, seconds=time.monotonic() - begun)


run = {
    "produce": produce, "consume": consume, "park": park, "acks": acks, "begin": begin,
    "join": lambda group, session_ms: join(group, int(session_ms)),
}[verb]
asyncio.run(run(*(arguments if verb == "join" else map(int, arguments))))
