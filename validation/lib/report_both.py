"""The same transfers in ns-2 and in ns-3, side by side."""

from . import scenarios
from .document import table
from .report_tuners import cell, mean, pair

CHART = "P1"


def _name(name, connections):
    words = f"fixed {name}" if isinstance(name, int) else f"`{name}`"
    return words + (", kept" if connections == "kept" else "")


def tables(ns2, ns3):
    rows = []
    for at in scenarios.SECOND:
        for name, connections in scenarios.SECOND_TUNERS:
            there = [found.get((at, name, connections)) for found in (ns2, ns3)]
            if not there[1]:
                continue
            off = f"{100 * (mean(there[1]) / mean(there[0]) - 1):+.1f}" if there[0] else ""
            rows.append([at, _name(name, connections), *(cell(runs, not isinstance(name, int)) for runs in there), off])
    return {"both": table(["", "", "ns-2", "ns-3", "ns-3 to ns-2, %"], rows)}


def charts(ns2, ns3):
    shown = [
        (f"{name}, {simulator}", found[(CHART, name, "fresh")][0])
        for name in ("apt", "pilot")
        for simulator, found in (("ns-2", ns2), ("ns-3", ns3))
        if (CHART, name, "fresh") in found
    ]
    if (CHART, "pilot", "fresh") not in ns3:
        return {}
    words, _ = scenarios.DEVELOPMENT[CHART]
    note = "100 Mbit/s, windows of 43 packets, fresh connections; where the two simulators agree one line covers the other"
    return {f"validation-both-{CHART}.svg": pair(f"{CHART}: {words}, in ns-2 and in ns-3", note, shown, scenarios.SECONDS)}
