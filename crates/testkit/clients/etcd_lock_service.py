"""Uses etcd's own lock service as a program of its users would, over its HTTP gateway.

usage: etcd_lock_service.py PORT NAME TTL_SECONDS
Says `ready`, then does what each line on stdin asks and answers with one line: `acquire` waits and says
`granted` and the token, which is the create_revision of its key; `release` says `released`; `count DIRECTORY
WHO PAUSE_MS` counts there until there is a file `enough`, and says how often it did. Ends when stdin does.
"""

import base64
import http.client
import json
import sys
import threading
import time

from counting import count

port, name, ttl = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def call(connection, path, message):
    connection.request("POST", f"/v3/{path}", json.dumps(message))
    response = connection.getresponse()
    answer = json.loads(response.read().splitlines()[0])
    if response.status != 200:
        sys.exit(f"{path}: {answer}")
    return answer


def keep_alive():
    """The service does not: its users must renew their leases."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        call(connection, "lease/keepalive", {"ID": lease})
        time.sleep(ttl / 4)


connection = http.client.HTTPConnection("127.0.0.1", port)
lease = call(connection, "lease/grant", {"TTL": ttl})["ID"]
threading.Thread(target=keep_alive, daemon=True).start()
key = None


def acquire():
    global key
    key = call(connection, "lock/lock", {"name": encoded(name), "lease": lease})["key"]
    return int(call(connection, "kv/range", {"key": key})["kvs"][0]["create_revision"])


def release():
    call(connection, "lock/unlock", {"key": key})


print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    if verb == "acquire":
        print("granted", acquire(), flush=True)
    elif verb == "release":
        release()
        print("released", flush=True)
    elif verb == "count":
        print(count(acquire, release, *arguments), flush=True)
call(connection, "lease/revoke", {"ID": lease})
