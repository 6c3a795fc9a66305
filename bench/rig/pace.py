"""Measures pauses of a transfer, and runs log-ins at a steady rate."""

import json
import os
import pathlib
import subprocess
import time

from .measure import Failure, guarded

# Samples of a transfer per second.
OFTEN = 50


class Pace:
    """Runs a program that writes a file, and measures its rate and longest pause."""

    def __init__(self, argv, size, environment, limit=170):
        began = time.monotonic()
        process = subprocess.Popen(guarded(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
        seen = [(0.0, 0)]
        while process.poll() is None:
            now = time.monotonic() - began
            written = written_by(process.pid)
            if written is not None:
                seen.append((now, written))
            if now > limit:
                process.kill()
                process.wait()
                raise Failure(f"{argv[0]} took more than {limit} s")
            time.sleep(1 / OFTEN)
        if process.returncode:
            raise Failure(f"{argv[0]} ended with {process.returncode}")
        self.seconds = time.monotonic() - began
        self.rate = size / self.seconds / 1e6
        self.gap = gap(seen)


def written_by(pid):
    """Returns the bytes that a process has passed to write calls; `None` if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("wchar:"))


def gap(seen):
    """Returns the longest pause between the first byte and the last, in milliseconds."""
    moments = [later[0] for earlier, later in zip(seen, seen[1:]) if later[1] > earlier[1]]
    return 1000 * max((later - earlier for earlier, later in zip(moments, moments[1:])), default=0.0)


class LogIns:
    """Log-ins at a steady rate during a `with` block. `words`: way, server, rate, and further
    arguments of `log-ins`."""

    def __init__(self, root, words, environment):
        way, server, rate, *rest = map(str, words)
        program = pathlib.Path(root) / "target" / "release" / "log-ins"
        self.argv = guarded([program, way, server, rate, "0", *rest])
        self.environment = {**os.environ, **environment}
        self.result = None

    def __enter__(self):
        self.process = subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=self.environment)
        return self

    def __exit__(self, *_):
        # The program ends at the end of its input.
        told, _ = self.process.communicate(timeout=120)
        if self.process.returncode:
            raise Failure(f"log-ins ended with {self.process.returncode}")
        self.result = json.loads(told)
