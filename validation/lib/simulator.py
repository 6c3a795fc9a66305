"""What the packet simulators have in common: runs, one at a time, each remembered; and the numbers of a transfer."""

import json
import subprocess
from pathlib import Path

from .cache import Cache
from .fingerprint import fingerprint

SIM = Path(__file__).resolve().parent.parent / "sim"


class Missing(Exception):
    """A result is not there, and running for it was not asked for."""


class Simulator:
    """A simulator says what a script's results depend on (`_known`), how it is run (`_command`), and STEADY, its script of flows
    that never end. The one of transfers is called chunks."""

    STEADY = ""

    def __init__(self, cache: Cache, ropewalk: str, may_run=True):
        self.cache, self.ropewalk, self.may_run = cache, ropewalk, may_run
        self.runs = 0

    def _run(self, script, words, keyed):
        key = f"{self._known(script)} {keyed}"
        value = self.cache.get(key)
        if value is None:
            if not self.may_run:
                raise Missing(key)
            command = [*self._command(script), *words]
            run = subprocess.run(command, cwd=SIM, capture_output=True, text=True, timeout=3600)
            if run.returncode or not run.stdout.strip():
                raise SystemExit(f"validation: {' '.join(map(str, command))}:\n{run.stderr or run.stdout}")
            value = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
            self.cache.put(key, value)
            self.runs += 1
        return value

    def steady(self, path, streams, seed, spread=1.0, seconds=60):
        """Numbers of flows that never end."""
        words = [f"{key}={value}" for key, value in sorted(path.items())]
        words += [f"flows={streams}", f"seed={seed}", f"time={seconds}", f"spread={spread}"]
        return self._run(self.STEADY, words, " ".join(words))[0]

    def transfer(self, path, tuner, seed, seconds, connections="fresh", know="window"):
        """One transfer in chunks: {"mbps", "streams" (time mean), "last", "chunks", "series", "packet"}."""
        words = [f"{key}={value}" for key, value in sorted(path.items())]
        words += [f"seed={seed}", f"time={seconds}", f"connections={connections}", f"know={know}"]
        options = list(tuner)
        if connections == "kept":
            options.append("--kept")
        command = " ".join([self.ropewalk, "model", "tuner", *options])
        who = (tuner[0], *(["--kept"] if connections == "kept" else []))
        keyed = " ".join(words) + f" | {' '.join(options)} {fingerprint(self.ropewalk, who)}"
        lines = self._run("chunks", [*words, f"tuner={command}"], keyed)
        return _numbers(lines, seconds, path.get("packet", 1500))


def _numbers(lines, seconds, packet):
    samples = [line["sample"] for line in lines if "sample" in line]
    chunks = [line["chunk"] for line in lines if "chunk" in line]
    # The last sample is of the end; without duplicates of the same second.
    series = {second: (packets, streams) for second, packets, streams in samples}
    return {
        "mbps": samples[-1][1] * packet * 8 / seconds / 1e6,
        "streams": _time_mean(chunks, samples[-1][2], seconds),
        "last": samples[-1][2],
        "chunks": chunks,
        "series": [(second, *series[second]) for second in sorted(series)],
        "packet": packet,
    }


def _time_mean(chunks, last, seconds):
    end = chunks[-1][1] if chunks else 0.0
    total = sum((stop - start) * streams for start, stop, streams, _ in chunks)
    return (total + (seconds - end) * last) / seconds


def goodput_series(transfer):
    """[(second, Mbit/s of the five seconds before)]"""
    points, before = [], (0, 0)
    for second, packets, _ in transfer["series"]:
        if second > before[0]:
            points.append((second, (packets - before[1]) * transfer["packet"] * 8e-6 / (second - before[0])))
        before = (second, packets)
    return points


def streams_series(transfer, seconds):
    """Corners of the staircase N(t)."""
    points = []
    for start, stop, streams, _ in transfer["chunks"]:
        points += [(start, streams), (stop, streams)]
    if points:
        points += [(points[-1][0], transfer["last"]), (seconds, transfer["last"])]
    return points
