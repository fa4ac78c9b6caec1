"""kafka-python: produce, consume, park, join, acks, begin."""

import sys
import time

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from clients import tell

verb, broker, topic, *arguments = sys.argv[1:]


def produce(count, partitions):
    sender = KafkaProducer(bootstrap_servers=broker, linger_ms=20, batch_size=65536)
    sent = [
        sender.send(topic, str(number).encode(), partition=number % partitions)
        for number in range(count)
    ]
    sender.flush()
    assert all(future.succeeded() for future in sent)
    tell("produced", count=count)
    sender.close()


def consume(count, partitions):
    reader = KafkaConsumer(bootstrap_servers=broker, consumer_timeout_ms=20000)
    parts = [TopicPartition(topic, part) for part in range(partitions)]
    reader.assign(parts)
    reader.seek_to_beginning(*parts)
    seen = [[] for _ in range(partitions)]
    missing = count
    while missing:
        records = reader.poll(timeout_ms=20000, max_records=5000)
        assert records, f"{missing} are missing"
        for part, messages in records.items():
            seen[part.partition].extend(int(message.value) for message in messages)
            missing -= len(messages)
    tell("consumed", seen=[numbers == list(range(part, count, partitions))
                           for part, numbers in enumerate(seen)], count=sum(map(len, seen)))
    reader.close()


def park(max_wait_ms, _consumers):
    """Says when it gets the first message."""
    reader = KafkaConsumer(
        bootstrap_servers=broker, fetch_max_wait_ms=max_wait_ms,
        request_timeout_ms=max_wait_ms + 30000, connections_max_idle_ms=540000,
    )
    part = TopicPartition(topic, 0)
    reader.assign([part])
    reader.seek_to_beginning(part)
    tell("parked")
    next(reader)
    tell("got")
    tell("done")


class Held(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked):
        pass

    def on_partitions_assigned(self, assigned):
        tell("assigned", partitions=len(assigned))


def join(group, session_ms):
    """Says what is assigned to it, each time; for ever."""
    reader = KafkaConsumer(
        bootstrap_servers=broker, group_id=group, session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 6, auto_offset_reset="earliest",
    )
    reader.subscribe([topic], listener=Held())
    while True:
        reader.poll(timeout_ms=200)


def acks(timeout_ms):
    """One message with acks=all. Says what became of it."""
    sender = KafkaProducer(
        bootstrap_servers=broker, acks="all", retries=0, enable_idempotence=False,
        request_timeout_ms=timeout_ms, delivery_timeout_ms=timeout_ms + 60000,
    )
    sender.partitions_for(topic)
    begun = time.monotonic()
    try:
        sender.send(topic, b"acks", partition=0).get(30)
        code = 0
    except KafkaError as error:
        code = error.errno
    tell("answered", code=code, seconds=time.monotonic() - begun)
    sender.close(timeout=1)


def begin():
    """Begins a transaction. Says what it is told, and when."""
    begun = time.monotonic()
    told = None
    try:
        KafkaProducer(bootstrap_servers=broker, transactional_id="transfer").init_transactions()
    except KafkaError as error:
        told = str(error)
    tell("refused", told=told, seconds=time.monotonic() - begun)


{
    "produce": produce, "consume": consume, "park": park, "acks": acks, "begin": begin,
    "join": lambda group, session_ms: join(group, int(session_ms)),
}[verb](*(arguments if verb == "join" else map(int, arguments)))
