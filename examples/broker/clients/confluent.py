"""confluent-kafka, which is librdkafka: a group, a producer with acks=all, what is refused."""

from common import BROKER, GROUP, NUMBERS, PARTITIONS, TOPIC, in_order, refused
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic


def consumer():
    reader = Consumer({
        "bootstrap.servers": BROKER, "group.id": GROUP, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "fetch.wait.max.ms": 5000,
    })
    reader.subscribe([TOPIC])
    return reader


def read(reader, count):
    came = []
    while len(came) < count:
        message = reader.poll(20)
        assert message is not None, f"only {len(came)} came"
        if not message.error():
            came.append((message.partition(), int(message.value())))
    return came


sender = Producer({"bootstrap.servers": BROKER, "enable.idempotence": True})
sender.list_topics(TOPIC)  # Creates it, which librdkafka's groups do not.
reader = consumer()
while not reader.assignment():
    reader.poll(0.1)
for number in NUMBERS:
    sender.produce(TOPIC, str(number), partition=number % PARTITIONS)
assert sender.flush(30) == 0
assert in_order(read(reader, len(NUMBERS)))
reader.commit(asynchronous=False)
reader.close()
sender.produce(TOPIC, "7", partition=0)
assert sender.flush(30) == 0
assert read(consumer(), 1) == [(0, 7)], "what was committed comes again"
teller = Producer({"bootstrap.servers": BROKER, "transactional.id": "transfer"})
refused(lambda: teller.init_transactions(60), KafkaException)
admin = AdminClient({"bootstrap.servers": BROKER})
create = admin.create_topics([NewTopic("x")])["x"]
refused(lambda: create.result(60), KafkaException, "not supported")
