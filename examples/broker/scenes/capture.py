"""Captures what the clients send, for the fuzzer: a proxy writes tests/corpus/CLIENT.frames."""

import socket
import struct
import sys
import threading
from pathlib import Path

import scenes
from clients import SPEAKERS, Speaker
from confluent_kafka import Producer
from server import Server

CORPUS = Path(__file__).parent.parent / "tests" / "corpus"
LONGEST = 4096


class Proxy:
    """The server's port on 127.0.0.2. The clients are told that address in place of the server's,
    which is as long: so all that they send comes by."""

    def __init__(self, address):
        host, port = address.split(":")
        self.server = host, int(port)
        self.address = f"127.0.0.2:{port}"
        self.frames = {}
        listener = socket.create_server(("127.0.0.2", int(port)))
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(self.server)
            for pump in (self.requests, self.answers):
                threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def requests(self, client, server):
        ahead = b""
        while more := receive(client):
            server.sendall(more)
            ahead += more
            while len(ahead) >= 4 and len(ahead) >= 4 + struct.unpack(">i", ahead[:4])[0]:
                length = 4 + struct.unpack(">i", ahead[:4])[0]
                self.keep(ahead[:length])
                ahead = ahead[length:]
        server.close()

    def answers(self, client, server):
        while more := receive(server):
            client.sendall(more.replace(b"127.0.0.1", b"127.0.0.2"))
        client.close()

    def keep(self, frame):
        """One of each kind and version; the longest, as it has something in its arrays."""
        kind = frame[4:8]
        if len(self.frames.get(kind, b"")) < len(frame) <= LONGEST:
            self.frames[kind] = frame


def receive(stream):
    try:
        return stream.recv(1 << 16)
    except OSError:
        return b""


def speak(client, server):
    """All that a client can do, once."""
    topic = f"captured-{client}"
    Producer({"bootstrap.servers": server.address}).list_topics(topic)
    for verb in ("produce", "consume"):
        Speaker(client, verb, server.address, topic, 40, 4).next(f"{verb}d")
    member = Speaker(client, "join", server.address, topic, f"group-{client}", 3000)
    while member.next("assigned")["partitions"] != 4:
        pass
    member.kill()
    Speaker(client, "acks", server.address, topic, 1000).next("answered")
    if client != "kcat":
        Speaker(client, "begin", server.address, topic).next("refused")


program, log, *_ = sys.argv[1:]
server = Server(program, log)
try:
    proxy = Proxy(server.address)
    CORPUS.mkdir(exist_ok=True)
    server.address = proxy.address
    captured = {client: lambda client=client: speak(client, server) for client in SPEAKERS}
    for name, play in {**captured, "tools": lambda: scenes.tools(server)}.items():
        proxy.frames = {}
        play()
        frames = sorted(proxy.frames.items())
        (CORPUS / f"{name}.frames").write_bytes(b"".join(frame for _, frame in frames))
        print(f"{name}: {len(frames)} frames", flush=True)
finally:
    server.kill()
    for speaker in Speaker.started:
        speaker.kill()
