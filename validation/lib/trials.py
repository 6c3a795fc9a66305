"""Tuners at packet level: one transfer for each path, tuner and seed."""

from . import scenarios
from .simulator import Missing


def transfer(simulator, at, name, connections, seed, seconds=scenarios.SECONDS):
    _, changes = {**scenarios.DEVELOPMENT, **scenarios.UNSEEN}[at]
    know = "" if name == "blind" else "window"
    return simulator.transfer(
        scenarios.path(changes), scenarios.tuner(name, changes), seed, seconds, connections=connections, know=know
    )


def everything(simulator, plan, say=lambda text: None):
    """{(scenario, tuner, connections): [transfer of each seed]}; what may not be run and is not there is left out."""
    found = {}
    for number, (at, name, connections, seed) in enumerate(plan):
        say(f"transfer {number + 1} of {len(plan)}: {at} {name} {connections}")
        try:
            run = transfer(simulator, at, name, connections, seed)
        except Missing:
            continue
        found.setdefault((at, name, connections), []).append(run | {"seed": seed})
    return found
