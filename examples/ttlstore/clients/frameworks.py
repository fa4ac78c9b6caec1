"""What keeps things for a while by redis-py, Django's cache and Celery: frameworks.py PORT"""

import sys
import time

import celery
import django
from celery.contrib.testing.worker import start_worker
from django.conf import settings

URL = f"redis://127.0.0.1:{sys.argv[1]}/0"
backend = "django.core.cache.backends.redis.RedisCache"
settings.configure(CACHES={"default": {"BACKEND": backend, "LOCATION": URL}})
app = celery.Celery("e2e", broker="memory://", backend=URL)
app.conf.result_expires = 60

from django.core.cache import cache  # noqa: E402


def django_cache():
    cache.clear()
    cache.set("a", {"some": ["thing"]}, timeout=60)
    assert cache.get("a") == {"some": ["thing"]} and cache.has_key("a")
    assert not cache.add("a", 1) and cache.add("count", 1, timeout=None)
    assert cache.incr("count", 41) == 42 and cache.decr("count") == 41
    assert cache.touch("count", 60) and cache.touch("a", None) and not cache.touch("none", 60)
    cache.set_many({"b": 1, "c": 2}, timeout=60)
    assert cache.get_many(["b", "c", "none"]) == {"b": 1, "c": 2}
    assert cache.get_or_set("d", lambda: "made") == "made" and cache.delete("d")
    cache.delete_many(["b", "c"])
    cache.set("soon", 1, timeout=1)
    time.sleep(1.1)
    assert cache.get("soon") is None and cache.get("count") == 41
    cache.clear()
    assert cache.get("count") is None


@app.task
def add(one, other):
    return one + other


@app.task
def fail():
    raise ValueError("as it should")


def celery_results():
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


django_cache()
celery_results()
print("Django", django.get_version(), "Celery", celery.__version__)
