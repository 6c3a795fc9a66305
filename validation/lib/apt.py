"""Figs 5 to 8 of the report on GridFTP-APT: RED, 100 Mbit/s, 10 and 20 ms a link on three links, 500 s."""

from .simulator import Missing

SECONDS = 500
FIXED = (1, 4, 8, 16, 32)
# (tuner, connections, seed), the ones that matter most first
RUNS = [("apt", "fresh", 1), ("apt", "kept", 1), ("pilot", "fresh", 1), ("pilot", "kept", 1)]
RUNS += [*((number, "fresh", 1) for number in FIXED), *((number, "kept", 1) for number in (8, 16, 32))]
RUNS += [("apt", "kept", 2), ("apt", "kept", 3), ("apt-golden", "kept", 1)]


def path(tau):
    return {"rate": 100e6, "rtt": 6 * tau, "queue": 100, "discipline": "RED", "packet": 1000, "window": 64}


def words(name, tau):
    if isinstance(name, int):
        return ["fixed", "--first", str(name), "--packet", "1000"]
    return [name, "--first", "4", "--rtt", f"{6 * tau}ms", "--window", "64000B", "--packet", "1000"]


def everything(ns2, say=lambda text: None):
    """{(tau, tuner, connections): [transfer of each seed]}"""
    found = {}
    for tau in (10, 20):
        for name, connections, seed in RUNS:
            say(f"GridFTP-APT's path, {tau} ms: {name} {connections}")
            try:
                run = ns2.transfer(path(tau), words(name, tau), seed, SECONDS, connections=connections)
            except Missing:
                continue
            found.setdefault((tau, name, connections), []).append(run | {"seed": seed})
    return found
