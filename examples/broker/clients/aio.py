"""aiokafka: a group, a producer with acks=all, what is refused."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from common import BROKER, GROUP, NUMBERS, PARTITIONS, TOPIC, in_order, refused


def consumer():
    return AIOKafkaConsumer(
        TOPIC, bootstrap_servers=BROKER, group_id=GROUP, auto_offset_reset="earliest",
        enable_auto_commit=False, fetch_max_wait_ms=5000, request_timeout_ms=60000,
    )


async def read(reader, count):
    async def next_one():
        message = await asyncio.wait_for(reader.getone(), 20)
        return message.partition, int(message.value)
    return [await next_one() for _ in range(count)]


async def begin():
    async with AIOKafkaProducer(bootstrap_servers=BROKER, transactional_id="transfer") as teller:
        await teller.begin_transaction()


async def main():
    async with AIOKafkaProducer(bootstrap_servers=BROKER, enable_idempotence=True) as sender:
        async with consumer() as reader:  # The topic does not exist yet.
            while not reader.assignment():
                await asyncio.sleep(0.1)
            await asyncio.gather(*[
                await sender.send(TOPIC, str(number).encode(), partition=number % PARTITIONS)
                for number in NUMBERS
            ])
            assert in_order(await read(reader, len(NUMBERS)))
            await reader.commit()
        await sender.send_and_wait(TOPIC, b"7", partition=0)
    async with consumer() as reader:
        assert await read(reader, 1) == [(0, 7)], "what was committed comes again"


asyncio.run(main())
refused(lambda: asyncio.run(begin()), KafkaError)
