"""kafka-python: a group, a producer with acks=all, what is refused."""

from common import BROKER, GROUP, NUMBERS, PARTITIONS, TOPIC, in_order, refused
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError


def consumer():
    return KafkaConsumer(
        TOPIC, bootstrap_servers=BROKER, group_id=GROUP, auto_offset_reset="earliest",
        enable_auto_commit=False, consumer_timeout_ms=20000, fetch_max_wait_ms=5000,
        request_timeout_ms=60000,
    )


def read(reader, count):
    came = []
    for message in reader:
        came.append((message.partition, int(message.value)))
        if len(came) == count:
            return came
    raise AssertionError(f"only {len(came)} came")


first = TopicPartition(TOPIC, 0)
reader = consumer()
while not reader.assignment():  # The topic does not exist yet.
    reader.poll(100)
sender = KafkaProducer(bootstrap_servers=BROKER, acks="all")
for number in NUMBERS:
    sender.send(TOPIC, str(number).encode(), partition=number % PARTITIONS)
sender.flush(30)
assert in_order(read(reader, len(NUMBERS)))
assert reader.end_offsets([first]) == {first: len(NUMBERS) // PARTITIONS}
assert reader.offsets_for_times({first: 0})[first].offset == 0
reader.commit()
reader.close()
sender.send(TOPIC, b"7", partition=0).get(30)
assert read(consumer(), 1) == [(0, 7)], "what was committed comes again"
teller = KafkaProducer(bootstrap_servers=BROKER, transactional_id="transfer")
refused(teller.init_transactions, KafkaError)
admin = KafkaAdminClient(bootstrap_servers=BROKER)
refused(lambda: admin.create_topics([NewTopic("x", 1, 1)]), KafkaError, "not support")
