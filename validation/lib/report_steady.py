"""Tables and charts of the steady state."""

from . import chart, steady
from .document import table

# Error of (12), %, with a queue of 50, that others found with scripts of their own.
FOUND_BEFORE = {
    (100, 19): 1.8, (100, 20): 1.7, (100, 24): 4.8, (100, 30): 10.3, (100, 40): 9.8, (100, 50): 9.8,
    (20, 5): 0.2, (20, 10): 1.4, (20, 20): 4.2, (20, 30): 1.7, (20, 40): -0.7, (20, 50): -3.7,
}  # fmt: skip


def _off(value, truth):
    return f"{100 * (value / truth - 1):+.1f}"


def _loss(value):
    return "0" if value < 5e-6 else f"{value:.4f}".removeprefix("0")


def models(ours, found):
    """{(round trip, queue): {streams: model at the measured mean round trip, with "fluid"}}"""
    answers = {}
    for (rtt, queue), by_number in found.items():
        points = [(streams, by_number[streams]["rtt_ms"]) for streams in by_number]
        rows = ours.model(steady.RATE, steady.PACKET, steady.WINDOW, points)
        for (streams, _), row in zip(points, rows):
            if queue == 50:
                row["fluid"] = ours.fluid(steady.RATE, steady.PACKET, steady.WINDOW, rtt, queue, streams)
            answers.setdefault((rtt, queue), {})[streams] = row
    return answers


def tables(ours, found, said, together, second):
    out = {}
    for rtt in (100, 20):
        rows = []
        for streams, sim in found.get((rtt, 50), {}).items():
            model = said[(rtt, 50)][streams]
            rows.append(
                [
                    streams,
                    f"{model['w']:.1f}",
                    f"{sim['goodput']:.3f}",
                    f"{100 * (sim['most'] - sim['least']) / sim['goodput']:.1f}",
                    f"{model['goodput']:.3f}",
                    _off(model["goodput"], sim["goodput"]),
                    _off(model["goodput"], sim["goodput10"]),
                    _off(model["physical"], sim["goodput"]),
                    _off(model["fluid"]["goodput"], sim["goodput"]),
                    _loss(sim["loss"]),
                    _loss(model["loss"]),
                    _loss(model["physical_loss"]),
                    _loss(model["fluid"]["loss"]),
                ]
            )
        out[f"steady-{rtt}"] = table(
            "N,w,ns-2,spread %,(12),error %,after 10 s,physical %,fluid %,p ns-2,p (7),p physical,p fluid".split(","), rows
        )
    rows = []
    for (rtt, queue), by_number in found.items():
        if queue == 50:
            continue
        for streams, sim in by_number.items():
            model = said[(rtt, queue)][streams]
            rows.append(
                [rtt, queue, streams, f"{sim['goodput']:.3f}", _off(model["goodput"], sim["goodput"])]
                + [_off(model["physical"], sim["goodput"]), _loss(sim["loss"]), _loss(model["loss"])]
                + [_loss(model["physical_loss"])]
            )
    out["queues"] = table(
        "RTT ms,queue,N,ns-2,(12) %,physical %,p ns-2,p (7),p physical".split(","), rows
    )
    rows = []
    for (rtt, streams), sim in together.items():
        apart = found.get((rtt, 50), {}).get(streams)
        model, before = _model(ours, rtt, streams, sim), FOUND_BEFORE.get((rtt, streams))
        rows.append(
            [rtt, streams, f"{apart['goodput']:.3f}" if apart else "", f"{sim['goodput']:.3f}"]
            + [_off(model["goodput"], sim["goodput"]), "" if before is None else f"{before:+.1f}"]
            + [_loss(sim["loss"]), _loss(model["loss"])]
        )
    out["together"] = table("RTT ms,N,over a second,at once,(12) %,found before %,p,p (7)".split(","), rows)
    rows = []
    for (rtt, streams, spread), run in second.items():
        sim = found.get((rtt, 50), {}).get(streams) if spread == 1.0 else together.get((rtt, streams))
        if sim is None:
            continue
        ns3, model = run["all"], _model(ours, rtt, streams, run["all"])
        rows.append(
            [rtt, streams, "over a second" if spread == 1.0 else "at once", f"{ns3['goodput']:.3f}", f"{sim['goodput']:.3f}"]
            + [f"{model['goodput']:.3f}", _loss(ns3["loss"]), _loss(sim["loss"]), _loss(model["loss"])]
        )
    out["ns3"] = table("RTT ms,N,started,ns-3,ns-2,(12),p ns-3,p ns-2,p (7)".split(","), rows)
    return out


def _model(ours, rtt, streams, sim):
    return ours.model(steady.RATE, steady.PACKET, steady.WINDOW, [(streams, sim["rtt_ms"])])[0]


def charts(found, said, together, second):
    out = {}
    for rtt, figures in ((100, "Figs 7 and 8"), (20, "Figs 9 and 10")):
        if (rtt, 50) not in found:
            continue
        model, at = said[(rtt, 50)], sorted(found[(rtt, 50)])

        def sims(queue, key):
            return [(streams, run[key]) for streams, run in sorted(found.get((rtt, queue), {}).items())]

        def at_once(key):
            return [(streams, run[key]) for (delay, streams), run in together.items() if delay == rtt]

        def other(key):
            return [(streams, run["all"][key]) for (delay, streams, spread), run in second.items() if (delay, spread) == (rtt, 1.0)]

        panels = []
        for label, key, physical in (("goodput, packets/ms", "goodput", "physical"), ("loss", "loss", "physical_loss")):
            series = [
                chart.Series("ns-2, queue 50", sims(50, key), "points"),
                chart.Series("the same, started at once", at_once(key), "points", "#e69f00"),
                chart.Series("ns-2, queue 100", sims(100, key), "points", "#56b4e9"),
                chart.Series("ns-2, queue 833", sims(833, key), "points", "#999999"),
                chart.Series("ns-3, queue 50", other(key), "points", "#000000"),
                chart.Series("model, (12) and (7)", [(n, model[n][key]) for n in at], "line", "#d55e00"),
                chart.Series("model, physical", [(n, model[n][physical]) for n in at], "dashes", "#009e73"),
                chart.Series("fluid, queue 50", [(n, model[n]["fluid"][key]) for n in at], "dashes", "#cc79a7"),
            ]
            panels.append(chart.Panel(label, [one for one in series if one.points]))
        out[f"validation-{rtt}ms.svg"] = chart.svg(
            f"{figures}: {rtt} ms, 100 Mbit/s, windows of 43 packets",
            "60 s from the start, mean of three seeds; model at the mean round trip that ns-2 had with a queue of 50",
            "streams",
            (0, 52),
            panels,
        )
    return out


def bounds(ours, ns2, cases, seeds=(1,)):
    """[(what, value, low, high)]: how far the model is off, for each case of lib/short.py."""
    checks = []
    for rtt, queue, streams, spread, low, high, factor in cases:
        sim = steady.point(ns2, rtt, queue, streams, seeds, spread)
        model = _model(ours, rtt, streams, sim)
        what = f"{rtt} ms, queue {queue}, {streams} streams, started within {spread:g} s"
        checks.append((f"{what}: error of (12), %", 100 * (model["goodput"] / sim["goodput"] - 1), low, high))
        if factor:
            ratio = model["loss"] / sim["loss"]
            checks.append((f"{what}: loss by (7) over simulated", ratio, 1 / factor, factor))
    return checks
