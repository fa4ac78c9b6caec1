"""What the Python clients have in common."""

import sys
import time

BROKER, TOPIC = sys.argv[1:]
GROUP = f"{TOPIC}-readers"
PARTITIONS = 4
NUMBERS = range(1000)


def in_order(came):
    """Whether each partition's numbers came once, and in their order."""
    return all(
        [number for part, number in came if part == index] == list(NUMBERS[index::PARTITIONS])
        for index in range(PARTITIONS)
    )


def refused(begin, errors, reason="uthoriz"):
    """What the broker does not do is refused, and not only when somebody loses patience."""
    begun = time.monotonic()
    try:
        begin()
    except errors as error:
        assert time.monotonic() - begun < 20, "not at once"
        assert reason in f"{error} {error!r}", repr(error)
    else:
        raise AssertionError("it was not refused")
