"""The server under test: a process of its own, its metrics and its log."""

import os
import signal
import subprocess
import time
import urllib.request
from datetime import datetime
from pathlib import Path


class Server:
    def __init__(self, program, log, *options):
        self.log_path = Path(log)
        self.log = open(log, "w")
        command = [program, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=self.log,
        )
        # "listening on 127.0.0.1:PORT, metrics on http://127.0.0.1:PORT/metrics"
        words = self.process.stdout.readline().split()
        self.address = words[2].rstrip(",")
        self.http = words[5].removesuffix("/metrics")

    def metrics(self):
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def parked(self, purgatory="fetch"):
        return self.metrics()[f'tickwheel_purgatory_delayed{{purgatory="{purgatory}"}}']

    def follower(self, command):
        request = urllib.request.Request(f"{self.http}/follower/{command}", method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def wait_until(self, what, holds, seconds=30):
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.02)

    def logged(self, *words):
        """The times of the log's lines that have all these words, in seconds since 1970."""
        lines = self.log_path.read_text().splitlines()
        hits = (line for line in lines if all(word in line for word in words))
        return [datetime.fromisoformat(line.split()[0]).timestamp() for line in hits]

    def resident_mib(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def interrupt(self):
        """Ctrl-C. Returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(10)

    def kill(self):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
