"""Java's kafka-clients, driven by JPype: CLASSPATH has its jar. All settings are its defaults."""

import os

import jpype
import jpype.imports
from common import BROKER, GROUP, NUMBERS, PARTITIONS, TOPIC, in_order, refused

jpype.startJVM(classpath=os.environ["CLASSPATH"].split(":"))
from java.time import Duration  # noqa: E402
from java.util import HashMap, List  # noqa: E402
from org.apache.kafka.clients.consumer import KafkaConsumer  # noqa: E402
from org.apache.kafka.clients.producer import KafkaProducer, ProducerRecord  # noqa: E402
from org.apache.kafka.common.errors import TransactionalIdAuthorizationException  # noqa: E402

STRINGS = "org.apache.kafka.common.serialization.String"


def settings(kind, **others):
    names = {"bootstrap.servers": BROKER}
    names |= {f"{part}.{kind}": f"{STRINGS}{kind.capitalize()}" for part in ("key", "value")}
    properties = HashMap()
    names |= {name.replace("_", "."): value for name, value in others.items()}
    for name, value in names.items():
        properties.put(name, value)
    return properties


def record(partition, number):
    return ProducerRecord(TOPIC, jpype.JInt(partition), None, str(number))


def consumer():
    reader = KafkaConsumer(settings("deserializer", group_id=GROUP, auto_offset_reset="earliest"))
    reader.subscribe(List.of(TOPIC))
    return reader


def read(reader, count):
    came = []
    while len(came) < count:
        records = reader.poll(Duration.ofSeconds(20))
        assert not records.isEmpty() or not reader.assignment().isEmpty(), f"only {len(came)} came"
        came += [(record.partition(), int(str(record.value()))) for record in records]
    return came


reader = consumer()
while reader.assignment().isEmpty():  # The topic does not exist yet.
    reader.poll(Duration.ofMillis(100))
sender = KafkaProducer(settings("serializer"))
for number in NUMBERS:
    sender.send(record(number % PARTITIONS, number))
sender.flush()
assert in_order(read(reader, len(NUMBERS)))
reader.close()  # Which commits.
sender.send(record(0, 7)).get()
assert read(consumer(), 1) == [(0, 7)], "what was committed comes again"
teller = KafkaProducer(settings("serializer", transactional_id="transfer"))
refused(teller.initTransactions, TransactionalIdAuthorizationException)
os._exit(0)  # Without waiting for Java's threads.
