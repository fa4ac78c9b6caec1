"""The table of clients in the README: which they are, and what the last run with them has shown."""

import json
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from clients import KCAT, NODE_MODULES
from confluent_kafka import libversion

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- clients: filled by e2e -->\n", "<!-- end of clients -->"


def node(package):
    manifest = Path(NODE_MODULES) / package / "package.json"
    return f"{package} {json.loads(manifest.read_text())['version']}"


def kcat():
    told = subprocess.run([KCAT, "-V"], capture_output=True, text=True).stdout
    numbers = re.findall(r"Version ([0-9.]+).*librdkafka ([0-9.]+)", told, re.DOTALL)[0]
    return "kcat {}, librdkafka {}".format(*numbers)


def rdkafka():
    lock = (Path(__file__).parent / "speak_rdkafka" / "Cargo.lock").read_text()
    crate = re.search(r'name = "rdkafka"\nversion = "([0-9.]+)"', lock)[1]
    library = re.search(r'name = "rdkafka-sys"\nversion = "[0-9.]+\+([0-9.]+)"', lock)[1]
    return f"the rdkafka crate {crate}, librdkafka {library}"


NAMES = {
    "confluent": lambda: f"confluent-kafka {version('confluent-kafka')}, librdkafka {libversion()[0]}",
    "kafka-python": lambda: f"kafka-python {version('kafka-python')}",
    "aiokafka": lambda: f"aiokafka {version('aiokafka')}",
    "platformatic": lambda: node("@platformatic/kafka"),
    "kafkajs": lambda: node("kafkajs"),
    "rdkafka": rdkafka,
    "kcat": kcat,
}


def table(told):
    columns = list(next(iter(told.values())))
    rows = [["client", *columns], ["---"] * (len(columns) + 1)]
    rows += [[NAMES[client](), *(facts[column] for column in columns)]
             for client, facts in told.items()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def fill(told):
    """Writes the table into the README, where the last one was."""
    before, rest = README.read_text().split(BEGIN)
    _, after = rest.split(END)
    README.write_text(f"{before}{BEGIN}{table(told)}{END}{after}")
