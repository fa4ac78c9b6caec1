"""Django's cache, whose entries vanish on time: python3 django_cache.py PORT"""

import sys
import time

import django
from django.conf import settings

backend = "django.core.cache.backends.redis.RedisCache"
location = f"redis://127.0.0.1:{sys.argv[1]}/0"
settings.configure(CACHES={"default": {"BACKEND": backend, "LOCATION": location}})

from django.core.cache import cache  # noqa: E402

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
print("Django", django.get_version())
