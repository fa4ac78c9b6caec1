"""Celery's results, which vanish on time: python3 celery_results.py PORT"""

import sys

import celery
from celery.contrib.testing.worker import start_worker

app = celery.Celery("e2e", broker="memory://", backend=f"redis://127.0.0.1:{sys.argv[1]}/0")
app.conf.result_expires = 60


@app.task
def add(one, other):
    return one + other


@app.task
def fail():
    raise ValueError("as it should")


with start_worker(app, loglevel="CRITICAL", perform_ping_check=False):
    results = [add.delay(number, 1) for number in range(20)]
    assert [result.get(timeout=60) for result in results] == list(range(1, 21))
    assert celery.group(add.s(1, 1), add.s(2, 2))().get(timeout=60) == [2, 4]
    failure = fail.delay()
    assert isinstance(failure.get(timeout=60, propagate=False), ValueError)
    client = app.backend.client
    assert 0 < client.ttl(app.backend.get_key_for_task(failure.id)) <= 60
    failure.forget()
    assert app.AsyncResult(failure.id).state == "PENDING"
print("Celery", celery.__version__)
