"""The short form: a minute of simulation, and bounds on what it says. Nothing is remembered between runs."""

from . import apt, report_steady, scenarios, steady, trials
from .report_tuners import chunk_mean

# Two-way delay, queue, streams, seconds over which they start; error of (12) in % between; loss
# within that factor (0: not asked, for there is hardly any). The simulations are deterministic, so
# only a change of Ropewalk moves a value.
MODEL = [
    (100, 50, 10, 1.0, 0, 2, 0),
    (100, 50, 20, 1.0, 0, 3, 0),
    (100, 50, 40, 1.0, 1, 5, 1.6),
    (100, 50, 40, 0.1, 8, 13, 1.8),
    (100, 100, 24, 1.0, 0, 4, 2.0),
    (20, 50, 4, 1.0, 0, 2, 0),
    (20, 50, 10, 1.0, -1, 2, 1.3),
    (20, 50, 30, 1.0, -3, 1, 1.2),
    (20, 50, 50, 1.0, -5, -2, 1.4),
]


def checks(ours, ns2, say):
    """[(what, value, low, high)]"""
    say("models")
    found = report_steady.bounds(ours, ns2, MODEL)
    for rtt, want in ((100, (19, 20)), (20, (4, 5))):
        best = ours.optimum(steady.RATE, steady.PACKET, steady.WINDOW, rtt)
        found.append((f"{rtt} ms: best number by (12)", best, *want))
    rates = {}
    for at, name, connections in (
        ("P1", 16, "fresh"), ("P1", "apt", "fresh"), ("P1", "pilot", "fresh"), ("P1", "pilot", "kept"), ("P2", "pilot", "kept"),
    ):  # fmt: skip
        say(f"{at} {name} {connections}")
        rates[at, name, connections] = trials.transfer(ns2, at, name, connections, 1)["mbps"]
    found += [
        # The published evaluation has 76.0 and 89.1.
        ("P1: 16 streams always, Mbit/s", rates["P1", 16, "fresh"], 75, 77),
        ("P1: apt, Mbit/s", rates["P1", "apt", "fresh"], 87, 91),
        ("P1: pilot, Mbit/s", rates["P1", "pilot", "fresh"], 94, 100),
        ("P1: pilot over apt", rates["P1", "pilot", "fresh"] / rates["P1", "apt", "fresh"], 1.05, 2),
        ("P1: pilot with kept connections, Mbit/s", rates["P1", "pilot", "kept"], 97, 100),
        ("P2: pilot with kept connections, Mbit/s", rates["P2", "pilot", "kept"], 95, 100),
    ]
    say("GridFTP-APT's path")
    run = ns2.transfer(apt.path(10), apt.words("apt", 10), 1, 200, connections="kept")
    found.append(("GridFTP-APT, 10 ms a link, from 120 s to 200 s, Mbit/s", chunk_mean(run, 120, 200), 95, 100))
    found.append(("its streams then (the report has 13)", run["last"], 11, 14))
    return found
