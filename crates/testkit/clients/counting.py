"""What the workers do under their lock when they count."""

import os
import time


def count(acquire, release, directory, who, pause_ms):
    """Reads the counter, pauses, writes it back; reports when it begins and when it ends; rests."""

    def record(moment):
        with open(f"{directory}/record", "a") as file:
            file.write(f"{who} {token} {moment}\n")

    rounds = 0
    while not os.path.exists(f"{directory}/enough"):
        token = acquire()
        record("in")
        with open(f"{directory}/counter") as file:
            value = int(file.read() or 0)
        time.sleep(int(pause_ms) / 1000)
        with open(f"{directory}/counter", "w") as file:
            file.write(f"{value + 1}\n")
        record("out")
        release()
        rounds += 1
        time.sleep(0.02)
    return rounds
