"""Tells whether a tuner is still the one whose results are in the cache: by how it answers a fixed conversation.

Neither its source nor its program would do: they change with every comment and every other part of the program."""

import functools
import hashlib
import json
import math
import subprocess

# Name, megabits a second that n streams carry at second t.
LANDSCAPES = (
    ("knee", lambda n, t: min(5.16 * n, 95.0)),
    ("peak", lambda n, t: min(5.16 * n, 95.0) - (0.4 * (n - 19) if 19 < n < 45 else 10.4 if n >= 45 else 0)),
    ("share", lambda n, t: 100.0 * n / (n + 12) * math.exp(-0.004 * n)),
    ("lossy", lambda n, t: 90.0 * (1 - math.exp(-n / 14))),
    ("steps", lambda n, t: min(5.16 * n, 95.0) if t < 200 else min(3.0 * n, 140.0) if t < 420 else min(12.0 * n, 45.0)),
)


@functools.cache
def fingerprint(program, options) -> str:
    """Of the tuner that `program model tuner options` is."""
    total = hashlib.sha256()
    for name, landscape in LANDSCAPES:
        for know in (True, False):
            total.update(name.encode())
            _talk([program, "model", "tuner", *options], landscape, know, total)
    return total.hexdigest()[:12]


def _talk(command, landscape, know, total):
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        state = [12345]

        def noisy(rate):
            state[0] = (1103515245 * state[0] + 12345) % 2**31
            return rate * (1 + 0.08 * (state[0] / 2**31 - 0.5))

        def ask(line):
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
            return hear()

        def hear():
            line = process.stdout.readline()
            total.update(line.encode())
            return json.loads(line)

        clock, decision = 0.0, hear()
        while clock < 600:
            streams, left, elapsed, moved = decision["streams"], decision["bytes"], 0.0, 0.0
            while left > 0 and elapsed < 120:
                rate = max(0.1, noisy(landscape(streams, clock + elapsed))) * 1e6 / 8
                step = min(1.5, left / rate)
                elapsed, left, moved = elapsed + step, left - rate * step, moved + rate * step
                if step == 1.5 and ask({"elapsed": round(elapsed, 3), "rate_bps": round(rate * 8)})["stop"]:
                    break
            clock += elapsed + 0.2
            chunk = {"streams": streams, "bytes": round(moved), "seconds": round(elapsed + 0.2, 4), "rtt_ms": 105.0}
            decision = ask(chunk | {"min_rtt_ms": 100.0, "loss": 0.001} | ({"window_bytes": 64500} if know else {}))
        process.stdin.close()
