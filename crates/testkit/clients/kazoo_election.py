"""Campaigns with kazoo as a program of its users would.

usage: kazoo_election.py HOSTS PATH SESSION_MS VALUE
Says `ready`, then does what each line on stdin asks: `acquire` campaigns, and says `granted` and the token when it
leads, which is the czxid of its node; `contenders` says what all say of themselves, the leader first, with a
comma between; `release` steps down and says `released`. Ends when stdin does.
"""

import sys
import threading

from kazoo.client import KazooClient

hosts, path, session_ms, value = sys.argv[1:]
client = KazooClient(hosts=hosts, timeout=int(session_ms) / 1000)
client.start()
election = client.Election(path, value)
enough = threading.Event()


def lead():
    _, stat = client.get(f"{path}/{election.lock.node}")
    print("granted", stat.czxid, flush=True)
    enough.wait()


campaign = threading.Thread(target=lambda: election.run(lead), daemon=True)
print("ready", flush=True)
for line in sys.stdin:
    verb = line.strip()
    if verb == "acquire":
        campaign.start()
    elif verb == "contenders":
        print("contenders", ",".join(election.contenders()), flush=True)
    elif verb == "release":
        enough.set()
        campaign.join()
        print("released", flush=True)
client.stop()
