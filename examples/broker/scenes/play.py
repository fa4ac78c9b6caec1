"""Plays all scenes against a fresh server. Fails with the first thing that does not hold. With
--fill at the end, the table of clients in the README is made anew."""

import sys
import time

import scenes
import table
from clients import Speaker
from server import Server

PROGRAM, LOG, *FILL = sys.argv[1:]
ALL = [
    scenes.round_trips,
    scenes.parked_fetches,
    scenes.empty_fetches,
    scenes.killed_consumers,
    scenes.thousand_parked,
    scenes.stopped_follower,
    scenes.transactions,
    scenes.delayed,
    scenes.too_large,
    scenes.topic_limit,
    scenes.tools,
    scenes.unread,
    scenes.garbage,
    scenes.interrupted,
]

begun = time.monotonic()
server = Server(PROGRAM, LOG)
figures = []
try:
    for scene in ALL:
        started = time.monotonic()
        print(f"-- {scene.__name__}: {scene.__doc__.splitlines()[0]}", flush=True)
        figures.append(scene(server))
        print(f"   {figures[-1]} ({time.monotonic() - started:.1f} s)", flush=True)
except BaseException:
    print("\n".join(open(LOG).read().splitlines()[-15:]), file=sys.stderr)
    raise
finally:
    server.kill()
    for speaker in Speaker.started:
        speaker.kill()
print(table.table(scenes.TOLD))
if FILL:
    table.fill(scenes.TOLD)
print(f"broker e2e: {'; '.join(figures)}; {time.monotonic() - begun:.0f} s in all")
