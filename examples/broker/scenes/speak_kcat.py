"""kcat: produce, consume, park, join, acks. It is a program, and this only starts and reads it."""

import re
import subprocess
import sys
import time

from clients import kcat, tell

verb, broker, topic, *arguments = sys.argv[1:]


def produce(count, partitions):
    for part in range(partitions):
        numbers = "\n".join(map(str, range(part, count, partitions)))
        sender = kcat(broker, "-P", "-t", topic, "-p", str(part), stdin=subprocess.PIPE)
        sender.communicate(numbers)
        assert sender.returncode == 0
    tell("produced", count=count)


def consume(count, partitions):
    seen = [[] for _ in range(partitions)]
    reader = kcat(
        broker, "-C", "-q", "-e", "-t", topic, "-o", "beginning", "-f", "%p %s\n",
        stdout=subprocess.PIPE,
    )
    for line in reader.stdout:
        part, number = line.split()
        seen[int(part)].append(int(number))
    assert reader.wait() == 0
    tell("consumed", seen=[numbers == list(range(part, count, partitions))
                           for part, numbers in enumerate(seen)], count=sum(map(len, seen)))


def park(max_wait_ms, _consumers):
    """Says when it gets the first message."""
    reader = kcat(
        broker, "-C", "-q", "-u", "-c", "1", "-t", topic, "-p", "0", "-o", "beginning",
        "-X", f"fetch.wait.max.ms={max_wait_ms}", "-X", f"socket.timeout.ms={max_wait_ms + 30000}",
        stdout=subprocess.PIPE,
    )
    tell("parked")
    assert reader.stdout.readline()
    tell("got")
    assert reader.wait() == 0
    tell("done")


def empty(max_wait_ms, count):
    """How long its empty fetches took, as librdkafka itself has measured them."""
    reader = kcat(
        broker, "-C", "-t", topic, "-p", "0", "-o", "end", "-d", "protocol",
        "-X", f"fetch.wait.max.ms={max_wait_ms}",
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )
    times = []
    for line in reader.stderr:
        found = re.search(r"Received FetchResponse .*rtt ([0-9.]+)ms", line)
        if found:
            times.append(float(found[1]))
            if len(times) == count:
                break
    reader.terminate()
    tell("empty", times=times)


def join(group, session_ms):
    """Says what is assigned to it, each time; for ever."""
    reader = kcat(
        broker, "-G", group, topic, "-X", f"session.timeout.ms={session_ms}",
        "-X", f"heartbeat.interval.ms={int(session_ms) // 6}",
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )
    tell("pid", pid=reader.pid)
    for line in reader.stderr:
        found = re.search(r"assigned: (.*)$", line)
        if found:
            tell("assigned", partitions=found[1].count("["))


def acks(timeout_ms):
    """One message with acks=all. Says what became of it."""
    begun = time.monotonic()
    sender = kcat(
        broker, "-P", "-t", topic, "-p", "0", "-X", "acks=all", "-X", "retries=0",
        "-X", f"request.timeout.ms={timeout_ms}", stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    _, told = sender.communicate("acks\n")
    code = 7 if "Broker: Request timed out" in told else sender.returncode
    tell("answered", code=code, seconds=time.monotonic() - begun)


{
    "produce": produce, "consume": consume, "park": park, "acks": acks, "empty": empty,
    "join": join,
}[verb](*(arguments if verb == "join" else map(int, arguments)))
