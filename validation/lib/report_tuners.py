"""Tables and charts of tuners at packet level."""

from . import apt, chart, scenarios, steady
from .document import table
from .simulator import goodput_series, streams_series

# The published evaluation's, Mbit/s: fixed 8, 16, 32, 64, apt, apt-long, track.
PUBLISHED = {
    "P1": (38.2, 76.0, 93.2, 86.0, 89.1, 92.6, 95.5),
    "P2": (87.5, 93.3, 89.3, 91.9, 91.5, 95.2, 94.6),
    "P3": (83.4, 77.9, 82.3, 85.9, 81.1, 92.1, 88.3),
    "P4": (24.9, 47.3, 59.9, 66.8, 67.3, 75.4, 77.3),
    "P5": (52.0, 72.3, 72.3, 83.9, 77.5, 82.0, 90.6),
    "P6": (58.5, 82.3, 81.2, 88.0, 79.7, 86.3, 86.4),
    "P7": (53.8, 74.1, 71.7, 76.3, 53.6, 55.4, 74.1),
}
COLUMNS = [
    *((number, "fresh") for number in scenarios.FIXED),
    *((name, "fresh") for name in ("apt", "apt-long", "track", "pilot", "blind")),
    (16, "kept"), (32, "kept"), ("pilot", "kept"),
]  # fmt: skip


def mean(runs, key="mbps"):
    return sum(run[key] for run in runs) / len(runs)


def _head(columns):
    names = [f"fixed {name}" if isinstance(name, int) else f"`{name}`" for name, _ in columns]
    names = [name.replace("`blind`", "`pilot`, no W") for name in names]
    return [name + (", kept" if kind == "kept" else "") for name, (_, kind) in zip(names, columns)]


def cell(runs, tuned):
    if not runs:
        return ""
    return f"{mean(runs):.1f}" + (f" ({mean(runs, 'streams'):.0f})" if tuned else "")


def _trials(found, group, columns):
    rows, sums = [], {column: [] for column in columns}
    for at in group:
        for column in columns:
            if (at, *column) in found:
                sums[column].append(mean(found[(at, *column)]))
        rows.append([at] + [cell(found.get((at, *column)), not isinstance(column[0], int)) for column in columns])
    full = [f"{sum(sums[c]) / len(sums[c]):.1f}" if len(sums[c]) == len(group) else "" for c in columns]
    return table(["", *_head(columns)], [*rows, ["mean", *full]])


def tables(ns2_found, red, paths, ours):
    out = {
        "development": _trials(ns2_found, scenarios.DEVELOPMENT, COLUMNS),
        "unseen": _trials(ns2_found, scenarios.UNSEEN, [column for column in COLUMNS if column[0] != "blind"]),
        "scenarios": table(
            ["", "path"], [[at, words] for at, (words, _) in {**scenarios.DEVELOPMENT, **scenarios.UNSEEN}.items()]
        ),
    }
    order = [*((number, "fresh") for number in scenarios.FIXED), ("apt", "fresh"), ("apt-long", "fresh"), ("track", "fresh")]
    rows = []
    for at, published in PUBLISHED.items():
        cells = []
        for column, value in zip(order, published):
            runs = ns2_found.get((at, *column))
            cells.append(f"{value} → {mean(runs):.1f}" if runs else f"{value} →")
        rows.append([at, *cells])
    out["published"] = table(["", *_head(order)], rows)
    out["red"] = table(
        ["two-way delay", *[f"{n}" for n in ("best N, ns-2", "its Mbit/s", "N within 1 %", "N by (12)")]],
        [
            [
                f"{rtt} ms",
                max(by_number, key=by_number.get),
                f"{max(by_number.values()):.1f}",
                ", ".join(str(n) for n, rate in by_number.items() if rate >= 0.99 * max(by_number.values())),
                f"{ours.optimum(100e6, 1000, 64, rtt * 1.03)}",
            ]
            for rtt, by_number in red.items()
        ],
    )
    out["apt"] = _apt(paths)
    return out


def _apt(paths):
    rows = []
    for (tau, name, connections), runs in paths.items():
        what = f"fixed {name}" if isinstance(name, int) else f"`{name}`"
        late = [chunk_mean(run, apt.SECONDS - 200, apt.SECONDS) for run in runs]
        rows.append(
            [tau, what + (", kept" if connections == "kept" else ""), f"{mean(runs):.1f}", f"{sum(late) / len(late):.1f}"]
            + [", ".join(f"{run['last']} ({settled(run):.0f} s)" for run in runs) if not isinstance(name, int) else ""]
        )
    return table(["τ, ms", "", "Mbit/s in 500 s", "in the last 200 s", "N at the end (there since)"], rows)


def chunk_mean(run, start, stop):
    """Mean Mbit/s between two seconds."""
    packets = dict((second, count) for second, count, _ in run["series"])
    return (packets[stop] - packets[start]) * run["packet"] * 8e-6 / (stop - start)


def settled(run):
    """When the number of streams changed for the last time."""
    changed = 0.0
    for (start, _, streams, _), (after, _, then, _) in zip(run["chunks"], run["chunks"][1:]):
        if streams != then:
            changed = after
    if run["chunks"] and run["chunks"][-1][2] != run["last"]:
        changed = run["chunks"][-1][1]
    return changed


def pair(title, note, shown, seconds, top=None, steady_lines=()):
    """N(t) above goodput(t). shown: [(label, transfer)], steady_lines likewise, in the lower panel only."""
    colours = chart.COLOURS
    above = [
        chart.Series(label, streams_series(run, seconds), "line", colours[at]) for at, (label, run) in enumerate(shown)
    ]
    below = [
        chart.Series(label, chart.smooth(goodput_series(run), 4), "line", colours[at]) for at, (label, run) in enumerate(shown)
    ]
    below += [
        chart.Series(label, chart.smooth(goodput_series(run), 4), "dashes", ("#999999", "#bbbbbb", "#777777", "#555555", "#333333")[at])
        for at, (label, run) in enumerate(steady_lines)
    ]
    panels = [chart.Panel("streams", above), chart.Panel("goodput, Mbit/s (20 s)", below, top)]
    return chart.svg(title, note, "s", (0, seconds), panels)


def charts(found, paths):
    out = {}
    for tau, figures in ((10, "Figs 5 and 6"), (20, "Figs 7 and 8")):
        shown = [(f"{label}", paths[(tau, name, kind)][0]) for label, name, kind in (
            ("apt", "apt", "fresh"), ("apt, kept", "apt", "kept"), ("pilot", "pilot", "fresh"), ("pilot, kept", "pilot", "kept"))
            if (tau, name, kind) in paths]
        fixed = [(f"{number} stream" + "s" * (number > 1), paths[(tau, number, "fresh")][0]) for number in apt.FIXED if (tau, number, "fresh") in paths]
        if shown:
            out[f"validation-apt-{tau}ms.svg"] = pair(
                f"GridFTP-APT, {figures}: RED, {tau} ms a link",
                "100 Mbit/s, 1000-byte packets, windows of 64 packets, chunks of 10 s; ns-2",
                shown, apt.SECONDS, 105, fixed,
            )
    for at, (words, _) in {**scenarios.DEVELOPMENT, **scenarios.UNSEEN}.items():
        shown = [(label, found[(at, name, kind)][0]) for label, name, kind in (
            ("apt", "apt", "fresh"), ("track", "track", "fresh"), ("pilot", "pilot", "fresh"), ("pilot, kept", "pilot", "kept"))
            if (at, name, kind) in found]
        if shown:
            out[f"validation-{at}.svg"] = pair(
                f"{at}: {words}", "100 Mbit/s unless the title says otherwise; windows of 43 packets; ns-2", shown, scenarios.SECONDS
            )
    return out
