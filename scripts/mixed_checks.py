"""What must hold when two binaries of `fencepost` use one store. `scripts/mixed` runs these."""

import json
import os
import subprocess
import threading
import time

# For one command, waits included.
TIMEOUT = 60
# Reads, waits and writes, so that two at once lose an update.
INCREMENT = 'n=$(cat counter); sleep 0.01; echo $((n + 1)) >counter; echo "$FENCEPOST_TOKEN $0" >>tokens'


class Broken(Exception):
    """What does not hold."""


class Side:
    """One of the two binaries, and the store that it uses."""

    def __init__(self, name, binary, url, directory):
        self.name, self.binary, self.url, self.directory = name, binary, url, directory
        self.started = []

    def start(self, *words):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        environment = inherited | {"FENCEPOST_URL": self.url, "XDG_STATE_HOME": str(self.directory)}
        process = subprocess.Popen(
            [self.binary, *words], cwd=self.directory, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def end(self, process, expected=(0,)):
        """Waits for the end of a process; what it printed."""
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise Broken(f"{self.name}: no end within {TIMEOUT} s: {self.shown(process)}: {err.strip()}") from None
        if process.returncode not in expected:
            raise Broken(f"{self.name}: exit code {process.returncode}: {self.shown(process)}: {(err or out).strip()}")
        return out

    def stop(self):
        """Ends what a failed check left running."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                try:
                    process.communicate(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
        self.started.clear()

    def shown(self, process):
        return f"fencepost {' '.join(process.args[1:])}"

    def run(self, *words, expected=(0,)):
        return self.end(self.start(*words), expected)

    def json(self, *words, expected=(0,)):
        return json.loads(self.run(*words, "--json", expected=expected))


def require(holds, what):
    if not holds:
        raise Broken(what)


def until(condition, what):
    end = time.monotonic() + TIMEOUT
    while not condition():
        require(time.monotonic() < end, f"not in {TIMEOUT} s: {what}")
        time.sleep(0.02)


def both_ways(check):
    """Runs a check with each binary in each role."""
    def checked(old, new, _):
        check(old, new)
        check(new, old)
    return checked


def contend(old, new, options):
    """A counter that both raise is exact, and tokens rise in the order of the grants."""
    directory, failures = old.directory, []
    (directory / "counter").write_text("0\n")
    (directory / "tokens").write_text("")

    def work(side, number):
        try:
            for _ in range(options.rounds):
                label = f"{side.name}-{number}"
                side.run("run", "-q", "--wait", "50s", "--label", label, "contended", "--", "sh", "-c", INCREMENT, side.name)
        except Broken as failure:
            failures.append(str(failure))

    workers = [threading.Thread(target=work, args=(side, n)) for n in range(options.processes) for side in (old, new)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    require(not failures, "; ".join(failures[:3]))
    expected = 2 * options.processes * options.rounds
    lines = [line.split() for line in (directory / "tokens").read_text().splitlines()]
    tokens, names = [int(token) for token, _ in lines], [name for _, name in lines]
    counter = int((directory / "counter").read_text())
    require(counter == expected, f"{expected} increments, and the counter is {counter}")
    require(len(tokens) == expected, f"{expected} grants, and {len(tokens)} tokens")
    fallen = [pair for pair in zip(tokens, tokens[1:]) if pair[0] >= pair[1]]
    require(not fallen, f"tokens do not rise: {fallen[:3]}")
    changes = sum(one != other for one, other in zip(names, names[1:]))
    require(changes >= options.processes, f"the lock changed between the binaries only {changes} times")
    return f"{expected} grants, {changes} changes between the binaries"


@both_ways
def see(holder, other):
    """Each shows what the other holds and is refused while it does; waiters of both stand in one queue."""
    process = holder.start("run", "--label", "holder", "seen", "--", "sleep", "30")
    until(lambda: other.json("show", "seen")["holder"], f"{other.name} sees the holder")
    mine, theirs = holder.json("show", "seen"), other.json("show", "seen")
    for info in (mine, theirs):
        require(info["holder"]["label"] == "holder" and info["waiting"] == 0, f"shown as {info}")
    require(mine["token"] == theirs["token"], f"tokens {mine['token']} and {theirs['token']}")
    other.run("run", "-n", "seen", "--", "true", expected=(75,))
    first = other.start("run", "-q", "--label", "first", "seen", "--", "true")
    until(lambda: holder.json("show", "seen")["waiting"] == 1, f"{holder.name} sees the first waiter")
    second = holder.start("run", "-q", "--label", "second", "seen", "--", "true")
    until(lambda: other.json("show", "seen")["waiting"] == 2, f"{other.name} sees the second waiter")
    process.terminate()
    holder.end(process, expected=(143, -15))
    other.end(first)
    holder.end(second)


@both_ways
def hand_over(first, second):
    """A grant that one took for a script is renewed and released by the other."""
    grant = first.json("acquire", "handed", "--ttl", "20s")
    renewed = second.json("renew", "handed", "--owner", grant["owner"])
    require(renewed["token"] == grant["token"], f"renewed token {renewed['token']}, granted {grant['token']}")
    second.run("release", "handed", "--owner", grant["owner"])
    first.run("renew", "handed", "--owner", grant["owner"], expected=(76,))


@both_ways
def break_each_other(holder, other):
    """A break by one ends the command of the other at once."""
    process = holder.start("run", "--ttl", "60s", "broken", "--", "sleep", "50")
    until(lambda: holder.json("show", "broken")["holder"], "the lock is held")
    start = time.monotonic()
    broken = other.json("break", "--yes", "broken")["broken"]
    require(broken and broken["confirmed"], f"{holder.name} did not confirm the break by {other.name}: {broken}")
    holder.end(process, expected=(76,))
    require(time.monotonic() - start < 20, f"{holder.name} went on for {time.monotonic() - start:.0f} s")


@both_ways
def elect(leader, other):
    """One reads what the leader of the other publishes; terms rise over both."""
    process = leader.start("elect", "led", "--value", "10.0.0.7:80", "--", "sleep", "30")
    until(lambda: leader.json("show", "led")["holder"], "somebody leads")
    theirs, mine = other.json("leader", "led"), leader.json("leader", "led")
    require(theirs["value"] == "10.0.0.7:80", f"{other.name} reads {theirs}")
    require(theirs["term"] == mine["term"], f"terms {theirs['term']} and {mine['term']}")
    successor = other.start("elect", "led", "--", "sh", "-c", "echo $FENCEPOST_TOKEN")
    until(lambda: leader.json("show", "led")["waiting"] == 1, f"{leader.name} sees the candidate")
    process.terminate()
    leader.end(process, expected=(143, -15))
    term = int(other.end(successor))
    require(term > mine["term"], f"term {term} after {mine['term']}")


@both_ways
def once(runner, other):
    """A record of one counts for the other: running, done, failed, forgotten."""
    key = f"by-{runner.name}"
    process = runner.start("once", key, "--keep-output", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo 412")
    until(lambda: other.run("once", "show", key, expected=(0, 75)), f"{other.name} sees the record")
    running = other.json("once", "show", key)
    require(running["state"] == "running" and running["live"], f"shown as {running}")
    late = other.start("once", key, "--", "echo", "ran twice")
    (runner.directory / "go").touch()
    runner.end(process)
    (runner.directory / "go").unlink()
    printed = other.end(late)
    require(printed == "412\n", f"{other.name} printed {printed!r}")
    mine, theirs = (side.json("once", "show", key) for side in (runner, other))
    for record in (mine, theirs):
        require(record["state"] == "done" and record["result"] == "412\n", f"shown as {record}")
    require(mine["token"] == theirs["token"], f"tokens of the record: {mine['token']} and {theirs['token']}")
    require(key in other.run("once", "ls"), f"{other.name} does not list it")

    runner.run("once", "--record-failure", f"{key}/failed", "--", "sh", "-c", "exit 3", expected=(3,))
    other.run("once", f"{key}/failed", "--", "true", expected=(3,))
    other.run("once", "forget", "--yes", f"{key}/failed")
    runner.run("once", f"{key}/failed", "--", "true")

    crowd = [(side, side.start("once", f"{key}/crowd", "--", "sh", "-c", f"echo ran >>ran-{key}")) for side in (runner, other) * 3]
    for side, process in crowd:
        side.end(process)
    ran = (runner.directory / f"ran-{key}").read_text().count("ran")
    require(ran == 1, f"six came for one key, and {ran} ran")


@both_ways
def once_is_refused(one, _):
    """Redlock keeps no records."""
    one.run("once", "key", "--", "true", expected=(78,))


def fence(resource):
    """The mark that one sets is there for the other."""
    @both_ways
    def check(one, other):
        def run(side, verb, *words, expected=(0,)):
            return side.run("fence", verb, *words, "--resource", resource(side), expected=expected)
        name = f"by-{one.name}"
        run(one, "install")
        run(other, "install")
        run(one, "enter", name, "--token", "34")
        run(other, "enter", name, "--token", "33", expected=(77,))
        run(other, "enter", name, "--token", "35")
        marks = json.loads(run(one, "show", name, "--json"))["marks"]
        require([mark["token"] for mark in marks] == [35], f"marks {marks}")
    return check


def fence_file(old, new, _):
    """The same for a file, which is written under its mark."""
    for one, other in ((old, new), (new, old)):
        name = f"file-{one.name}"
        write = ("fence", "write", name, "--name", name, "--token")
        one.run(*write, "34")
        other.run(*write, "33", expected=(77,))
        other.run(*write, "35")
        one.run(*write, "34", expected=(77,))


def checks_of(store):
    """The checks by name, for a store."""
    checks = {"contend": contend, "see": see, "hand over": hand_over, "break": break_each_other, "elect": elect}
    checks["once"] = once_is_refused if store == "redlock" else once
    if store == "sqlite":
        checks["fence"] = fence(lambda side: f"sqlite:{side.directory}/resource.db")
        checks["file fence"] = fence_file
    if store in ("redis", "postgres"):
        checks["fence"] = fence(lambda side: side.url)
    return checks
