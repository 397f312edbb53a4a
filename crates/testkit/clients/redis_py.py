"""Uses the lock of redis-py as a program of its users would.

usage: redis_py.py PORT NAME TTL_MS
Says `ready`, then does what each line on stdin asks and answers with one line: `acquire` waits and says
`granted`; `try` does not wait and may say `refused`; `extend` and `release` say `extended` and
`released`, or the error; `count DIRECTORY` counts there until there is a file `enough`, and says how often
it did. Ends when stdin does.
"""

import os
import sys
import time

from redis import Redis
from redis.exceptions import LockError
from redis.lock import Lock

port, name, ttl_ms = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ttl = ttl_ms / 1000
lock = Lock(Redis(port=port), name, timeout=ttl, sleep=0.005, blocking_timeout=30)


def acquire(blocking=True):
    return "granted" if lock.acquire(blocking=blocking) else "refused"


def try_once():
    return acquire(blocking=False)


def extend():
    lock.extend(ttl, replace_ttl=True)
    return "extended"


def release():
    lock.release()
    return "released"


def count(directory):
    """Reads the counter, pauses, writes it back; then logs who did, and rests."""
    rounds = 0
    while not os.path.exists(f"{directory}/enough"):
        with lock:
            with open(f"{directory}/counter") as file:
                value = int(file.read() or 0)
            time.sleep(0.002)
            with open(f"{directory}/counter", "w") as file:
                file.write(f"{value + 1}\n")
            with open(f"{directory}/grants", "a") as file:
                file.write("redis-py\n")
        rounds += 1
        time.sleep(0.02)
    return rounds


verbs = {"acquire": acquire, "try": try_once, "extend": extend, "release": release, "count": count}
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    try:
        answer = verbs[verb](*arguments)
    except LockError as error:
        answer = type(error).__name__
    print(answer, flush=True)
