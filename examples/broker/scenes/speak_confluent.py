"""confluent-kafka, which is librdkafka: produce, consume, park, join, acks, begin."""

import resource
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from clients import tell

verb, broker, topic, *arguments = sys.argv[1:]


def producer(**settings):
    return Producer({"bootstrap.servers": broker, "linger.ms": 0, **settings})


def consumer(**settings):
    # What goes wrong is raised; nobody need read of closed connections.
    quiet = {"log_level": 0, "log.connection.close": False}
    return Consumer({"bootstrap.servers": broker, "group.id": "none", **quiet, **settings})


def produce(count, partitions):
    sender = producer(**{"linger.ms": 20, "enable.idempotence": True})
    failed = []
    for number in range(count):
        while True:
            try:
                sender.produce(
                    topic,
                    str(number).encode(),
                    partition=number % partitions,
                    on_delivery=lambda error, _: error and failed.append(str(error)),
                )
                break
            except BufferError:
                sender.poll(0.1)
    sender.flush()
    assert not failed, failed[:3]
    tell("produced", count=count)


def consume(count, partitions):
    reader = consumer()
    reader.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in range(partitions)])
    seen = [[] for _ in range(partitions)]
    while sum(map(len, seen)) < count:
        messages = reader.consume(5000, timeout=20)
        assert messages, f"only {sum(map(len, seen))} came"
        for message in messages:
            assert not message.error(), message.error()
            seen[message.partition()].append(int(message.value()))
    tell("consumed", seen=[numbers == list(range(part, count, partitions))
                           for part, numbers in enumerate(seen)], count=sum(map(len, seen)))
    reader.close()


def park(max_wait_ms, consumers):
    """Says when each of its consumers gets the first message."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    readers = [
        consumer(**{"fetch.wait.max.ms": max_wait_ms, "socket.timeout.ms": max_wait_ms + 30000,
                    "queued.max.messages.kbytes": 1024})
        for _ in range(consumers)
    ]
    for reader in readers:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    tell("parked")
    waiting = list(readers)
    while waiting:
        # One is waited for; of many each is asked in turn.
        for reader in list(waiting):
            message = reader.poll(30 if len(readers) == 1 else 0)
            if message is not None:
                assert not message.error(), message.error()
                waiting.remove(reader)
                tell("got")
        if len(readers) > 1:
            time.sleep(0.001)
    tell("done")


def join(group, session_ms):
    """Says what is assigned to it, each time; for ever."""
    reader = consumer(**{
        "group.id": group, "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // 6, "auto.offset.reset": "earliest",
    })
    held = lambda _, partitions: tell("assigned", partitions=len(partitions))
    reader.subscribe([topic], on_assign=held)
    while True:
        reader.poll(1)


def acks(timeout_ms):
    """One message with acks=all. Says what became of it."""
    sender = producer(**{"acks": "all", "request.timeout.ms": timeout_ms, "retries": 0})
    sender.list_topics(topic)
    begun = time.monotonic()
    result = []
    sender.produce(topic, b"acks", partition=0, on_delivery=lambda error, _: result.append(error))
    sender.flush()
    code = result[0].code() if result[0] else KafkaError.NO_ERROR
    tell("answered", code=code, seconds=time.monotonic() - begun)


def begin():
    """Begins a transaction. Says what it is told, and when."""
    begun = time.monotonic()
    told = None
    try:
        producer(**{"transactional.id": "transfer"}).init_transactions(60)
    except KafkaException as error:
        told = str(error)
    tell("refused", told=told, seconds=time.monotonic() - begun)


{
    "produce": produce, "consume": consume, "park": park, "acks": acks, "begin": begin,
    "join": lambda group, session_ms: join(group, int(session_ms)),
}[verb](*(arguments if verb == "join" else map(int, arguments)))
