"""The tracked files of the repository, and copies of them that keep what was built."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Test programs that only read the sources: elsewhere they tell nothing new, or do not fit.
READERS = {"house", "docs", "guide", "guarantees"}


def tracked():
    """The names of the tracked files that exist."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def test_programs():
    """The names of all test programs of the library but the readers."""
    programs = {path.stem for path in ROOT.glob("tests/*.rs")}
    return (programs | {path.parent.name for path in ROOT.glob("tests/*/main.rs")}) - READERS


def put(target, content):
    """Writes a file, unless it has this content: then its time stays, and nothing is rebuilt."""
    if not target.exists() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
