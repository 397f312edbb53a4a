"""Acts as a user at a terminal: runs a shell on a pty, types, and waits for output.

usage: typist.py STEP... where a step is `type:TEXT` or `see:REGEX`; TEXT may use \\n, \\x03 and the like.
Exits with 0 if all output appeared, else with 1 and the whole screen on stderr.
"""

import os
import pty
import re
import select
import signal
import sys
import time

LIMIT = 30


def main():
    shell, terminal = pty.fork()
    if shell == 0:
        os.environ["PS1"] = "$ "
        # A test runner may ignore these signals, Python ignores some, and ignored signals are inherited.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    screen, seen = "", 0
    for step in sys.argv[1:]:
        what, text = step.split(":", 1)
        if what == "type":
            os.write(terminal, text.encode().decode("unicode_escape").encode())
            continue
        until = time.monotonic() + LIMIT
        while True:
            found = re.compile(text).search(screen, seen)
            if found:
                seen = found.end()
                break
            ready, _, _ = select.select([terminal], [], [], max(0, until - time.monotonic()))
            try:
                more = os.read(terminal, 4096).decode(errors="replace") if ready else ""
            except OSError:
                more = ""
            if not more:
                sys.stderr.write(f"did not see {text!r} after:\n{screen}\n")
                return 1
            screen += more
    os.write(terminal, b"\nexit\n")
    os.close(terminal)
    os.waitpid(shell, 0)
    return 0


sys.exit(main())
