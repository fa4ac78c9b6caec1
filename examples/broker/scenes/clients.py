"""The clients, each behind the same few calls: what they are told, and nothing of how they work."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NODE_MODULES = os.environ["E2E_NODE_MODULES"]
KCAT = "kcat"


def kcat(broker, *arguments, **options):
    """A kcat, running."""
    command = [KCAT, "-b", broker, *arguments]
    return subprocess.Popen(command, text=True, **options)


def python(script, *arguments, **options):
    """A script of this folder, running: its client is a process of its own."""
    command = [sys.executable, "-u", str(HERE / script), *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, start_new_session=True, **options
    )


def node(script, *arguments, **options):
    environment = {**os.environ, "NODE_PATH": NODE_MODULES, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    command = ["node", str(HERE / script), *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, env=environment, start_new_session=True,
        **options
    )


def rust(*arguments, **options):
    """The program in `speak_rdkafka`, running."""
    command = [os.environ["E2E_RDKAFKA"], *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, start_new_session=True, **options
    )


# What speaks to the broker, by client: the same verbs, with the same arguments, and JSON lines out.
SPEAKERS = {
    "confluent": lambda *arguments: python("speak_confluent.py", *arguments),
    "kafka-python": lambda *arguments: python("speak_kafka_python.py", *arguments),
    "aiokafka": lambda *arguments: python("speak_aiokafka.py", *arguments),
    "platformatic": lambda *arguments: node("speak_platformatic.mjs", *arguments),
    "kafkajs": lambda *arguments: node("speak_kafkajs.js", *arguments),
    "rdkafka": rust,
    "kcat": lambda *arguments: python("speak_kcat.py", *arguments),
}


class Speaker:
    """A client in a process of its own, that does one thing and tells of it in JSON lines."""

    started = []

    def __init__(self, client, verb, broker, topic, *arguments):
        self.client = client
        self.process = SPEAKERS[client](verb, broker, topic, *arguments)
        self.started.append(self)

    def next(self, kind):
        """The next line of a kind."""
        for line in self.process.stdout:
            if line.startswith("{"):
                event = json.loads(line)
                if event["event"] == kind:
                    return event
        raise AssertionError(f"{self.client} has ended before it told of '{kind}'")

    def wait(self, seconds=120):
        status = self.process.wait(seconds)
        assert status == 0, f"{self.client} has ended with {status}"

    def kill(self):
        """It, and the program that it may have started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdout.close()


def tell(event, **facts):
    """What a speaker says."""
    print(json.dumps({"event": event, "at": time.time(), **facts}), flush=True)
