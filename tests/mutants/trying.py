"""Builds the tests of the copy in which all mutants are planted, and runs them."""

import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tree import READERS, ROOT

STORE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "mutants"
TREE = STORE / "tree"

# How each kind of test is built, and its programs, in the order in which they are asked. The first
# catches most mutants.
KINDS = {
    "debug": ([], "", ["--lib", "--tests"]),
    "soak": ([], "", ["--package", "tickwheel-soak"]),
    "count": (["--release"], "--cfg tickwheel_count", ["--test", "work"]),
    "model": (["--release"], "--cfg tickwheel_model", ["--test", "models"]),
}


@dataclass
class Test:
    kind: str
    program: str
    name: str
    seconds: float
    reached: frozenset


def fail(text):
    sys.exit(f"mutants: {text}")


def digest(*texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def environment(kind):
    return {
        **os.environ,
        "RUSTFLAGS": f"{KINDS[kind][1]} --cap-lints allow",
        "CARGO_TARGET_DIR": str(STORE / kind),
        "CARGO_PROFILE_RELEASE_LTO": "off",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
        "CARGO_PROFILE_DEV_DEBUG": "0",
        # Fewer cases than elsewhere: a survivor meets every test that reaches it.
        "QUICKCHECK_TESTS": "50",
        "TICKWHEEL_SCHEDULES": "300",
        "TICKWHEEL_EXHAUSTIVE": "300",
    }


def cargo(kind, *args):
    """Builds for tests of a kind. Returns whether that went well, and cargo's messages."""
    flags = KINDS[kind][0]
    command = ["cargo", "test", "--locked", "--all-features", "--no-run", "--quiet",
               "--message-format=json", *flags, *args]
    done = subprocess.run(command, cwd=TREE, env=environment(kind), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    return done.returncode == 0, done.stdout, done.stderr


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def execute(kind, program, names, limit, **variables):
    """Runs tests of a program. Returns whether all passed, or the first that did not."""
    command = [program, "--exact", *names]
    running = subprocess.Popen(command, cwd=TREE, env={**environment(kind), **variables},
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               errors="replace", start_new_session=True, preexec_fn=limits)
    late = threading.Event()

    def end():
        late.set()
        os.killpg(running.pid, 9)

    timer = threading.Timer(limit, end)
    timer.start()
    failed = None
    for line in running.stdout:
        if line.startswith("test ") and line.rstrip().endswith("... FAILED"):
            failed = line.split()[1]
            break
    timer.cancel()
    if failed:
        os.killpg(running.pid, 9)
    code = running.wait()
    running.stdout.close()
    if failed:
        return failed
    if late.is_set():
        return "does not end: " + ", ".join(names[:3])
    return None if code == 0 else "crashes: " + ", ".join(names[:3])


def find_tests(kind):
    """Builds the tests of a kind, and runs each by itself to see which functions it reaches."""
    print(f"{kind}: building the tests, and running each by itself", flush=True)
    good, output, errors = cargo(kind, *KINDS[kind][2])
    if not good:
        fail(f"the {kind} tests do not build:\n{errors[-3000:]}")
    store = STORE / f"tests-{kind}.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    wanted = []
    for line in output.splitlines():
        record = json.loads(line)
        program = record.get("executable")
        is_test = program and record["profile"]["test"]
        if not is_test or record["target"]["name"] in READERS:
            continue
        listed = subprocess.run([program, "--list", "--format", "terse"], cwd=TREE, text=True,
                                stdout=subprocess.PIPE, check=True).stdout
        stamp = str(os.stat(program).st_mtime_ns)
        wanted += [(program, line[:-len(": test")], stamp) for line in listed.splitlines()
                   if line.endswith(": test")]

    def look(at):
        program, name, _ = at
        if " ".join(at) in known:
            return
        reached = STORE / f"reached-{digest(kind, program, name)}"
        reached.unlink(missing_ok=True)
        begun = time.monotonic()
        outcome = execute(kind, program, [name], 600, TICKWHEEL_MUTANT="0",
                          TICKWHEEL_REACHED=str(reached))
        seconds = time.monotonic() - begun
        numbers = sorted(set(map(int, reached.read_text().split()))) if reached.exists() else []
        reached.unlink(missing_ok=True)
        if outcome is not None:
            print(f"left out, for it fails without a mutant: {name} ({outcome})", flush=True)
            numbers = []
        known[" ".join(at)] = (seconds, numbers)

    begun = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(look, wanted))
    known = {" ".join(at): known[" ".join(at)] for at in wanted}
    store.write_text(json.dumps(known))
    tests = [Test(kind, program, name, seconds, frozenset(reached))
             for program, name, stamp in wanted
             for seconds, reached in [known[f"{program} {name} {stamp}"]] if reached]
    print(f"{kind}: {len(tests)} tests reach the library, in {time.monotonic() - begun:.0f} s",
          flush=True)
    return tests


def batches(mutant, tests):
    """The tests that reach a mutant's function: the quick ones together, the slow ones alone."""
    tests = [test for test in tests if mutant.home.number in test.reached]
    for most, size in ((0.1, 40), (1.0, 8), (float("inf"), 1)):
        programs = {}
        for test in sorted(tests, key=lambda test: (len(test.reached), test.seconds)):
            if test.seconds <= most:
                programs.setdefault((test.kind, test.program), []).append(test)
        tests = [test for test in tests if test.seconds > most]
        for group in programs.values():
            yield from (group[at:at + size] for at in range(0, len(group), size))


def try_one(mutant, tests):
    """The first test that notices a mutant, or nothing."""
    for batch in batches(mutant, tests):
        limit = 15 + 8 * sum(test.seconds for test in batch)
        outcome = execute(batch[0].kind, batch[0].program, [test.name for test in batch], limit,
                          TICKWHEEL_MUTANT=str(mutant.number))
        if outcome is not None:
            return f"{batch[0].kind}: {outcome}"
    return None


def try_all(mutants, tests, deadline, verdicts):
    """Tries mutants, or recalls what became of them, until the deadline."""
    survivors, done, begun = 0, 0, time.monotonic()

    def one(mutant):
        nonlocal survivors, done
        if time.monotonic() > deadline:
            return
        # Also where the verdict is known: so those that were tried are a random choice of all.
        mutant.tried = True
        if mutant.verdict is None:
            noticed = next(filter(None, (try_one(mutant, tests[kind]) for kind in KINDS)), None)
            verdicts.note(mutant, "caught" if noticed else "survived", noticed or "")
        done += 1
        if mutant.verdict == "survived":
            survivors += 1
            print(f"survived  {mutant.name}", flush=True)
        if done % 100 == 0:
            print(f"{done} of {len(mutants)} tried, {survivors} survived, "
                  f"{time.monotonic() - begun:.0f} s", flush=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, mutants))
