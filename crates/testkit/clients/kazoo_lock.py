"""Uses the lock of kazoo as a program of its users would.

usage: kazoo_lock.py HOSTS PATH SESSION_MS [PATTERN]
PATTERN is given as extra_lock_patterns. Says `ready`, then does what each line on stdin asks and answers with
one line: `acquire` waits and says `granted` and the token, which is the czxid of its node; `try` does not wait
and may say `refused`; `release` says `released`; `count DIRECTORY WHO PAUSE_MS` counts there until there is
a file `enough`, and says how often it did. Ends when stdin does.
"""

import sys

from counting import count
from kazoo.client import KazooClient

hosts, path, session_ms, *patterns = sys.argv[1:]
client = KazooClient(hosts=hosts, timeout=int(session_ms) / 1000)
client.start()
lock = client.Lock(path, "a kazoo", extra_lock_patterns=patterns)


def token():
    _, stat = client.get(f"{path}/{lock.node}")
    return stat.czxid


def acquire():
    lock.acquire()
    return token()


print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    if verb == "acquire":
        print("granted", acquire(), flush=True)
    elif verb == "try":
        print(f"granted {token()}" if lock.acquire(blocking=False) else "refused", flush=True)
    elif verb == "release":
        lock.release()
        print("released", flush=True)
    elif verb == "count":
        print(count(acquire, lock.release, *arguments), flush=True)
client.stop()
