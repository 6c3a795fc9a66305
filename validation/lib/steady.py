"""Figs 7 to 10 of Ito, Ohsaki and Imase: N flows over one link for 60 s, goodput and loss by N."""

from .simulator import Missing

RATE, PACKET, WINDOW = 100e6, 1500, 43
POINTS = {
    (100, 50): ((1, 5, 10, 15, 19, 20, 24, 30, 40, 50), (1, 2, 3)),
    (20, 50): ((1, 3, 4, 5, 7, 10, 15, 20, 30, 40, 50), (1, 2, 3)),
    (100, 100): ((20, 24, 30, 40, 50), (1, 2, 3)),
    (20, 100): ((5, 10, 20, 30, 40, 50), (1, 2, 3)),
    (100, 833): ((20, 30, 50), (1,)),
}
# (round trip, streams, seconds over which the starts are spread), queue 50: ns-3 costs 7 s of a
# processor each.
SECOND_OPINION = ((20, 10, 1.0), (20, 10, 0.02), (20, 50, 1.0), (100, 20, 1.0), (100, 40, 1.0))
# All flows start within one round trip: (round trip, streams), queue 50.
TOGETHER = (*((100, n) for n in (20, 24, 30, 40, 50)), *((20, n) for n in (5, 10, 20, 30, 40, 50)))

# GridFTP-APT's paths with flows that never end: where goodput really peaks.
RED = {60: (8, 10, 11, 12, 13, 14, 16, 20, 32), 120: (16, 20, 22, 24, 25, 26, 28, 32, 40)}


def point(ns2, rtt, queue, streams, seeds, spread=1.0):
    path = {"rate": RATE, "packet": PACKET, "window": WINDOW, "rtt": rtt, "queue": queue}
    runs = [ns2.steady(path, streams, seed, spread) for seed in seeds]
    means = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
    rates = [run["goodput"] for run in runs]
    return means | {"least": min(rates), "most": max(rates)}


def measured(ns2, say=lambda text: None):
    """{(round trip, queue): {streams: means over the seeds}}"""
    found = {}
    for (rtt, queue), (numbers, seeds) in POINTS.items():
        for streams in numbers:
            say(f"{rtt} ms, queue {queue}, {streams} streams")
            try:
                found.setdefault((rtt, queue), {})[streams] = point(ns2, rtt, queue, streams, seeds)
            except Missing:
                pass
    return found


def together(ns2, say=lambda text: None):
    """{(round trip, streams): means over two seeds}"""
    found = {}
    for rtt, streams in TOGETHER:
        say(f"{rtt} ms, {streams} streams that start together")
        try:
            found[(rtt, streams)] = point(ns2, rtt, 50, streams, (1, 2), rtt / 1e3)
        except Missing:
            pass
    return found


def red(ns2, say=lambda text: None):
    """{round trip: {streams: Mbit/s}} of GridFTP-APT's RED paths after the first 10 s, mean of two seeds."""
    found = {}
    for rtt, numbers in RED.items():
        for streams in numbers:
            say(f"RED, {rtt} ms, {streams} streams")
            path = {"rate": RATE, "packet": 1000, "window": 64, "rtt": rtt, "queue": 100, "discipline": "RED"}
            try:
                runs = [ns2.steady(path, streams, seed) for seed in (1, 2)]
            except Missing:
                continue
            found.setdefault(rtt, {})[streams] = sum(run["goodput10"] for run in runs) / len(runs) * 8
    return found


def second_opinion(ns3, say=lambda text: None):
    """{(round trip, streams, spread): run of ns-3}"""
    found = {}
    for rtt, streams, spread in SECOND_OPINION:
        say(f"ns-3: {rtt} ms, {streams} streams")
        path = {"rate": RATE, "packet": PACKET, "window": WINDOW, "rtt": rtt, "queue": 50}
        try:
            found[(rtt, streams, spread)] = ns3.steady(path, streams, 1, spread)
        except Missing:
            pass
    return found
