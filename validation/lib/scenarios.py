"""What is simulated. Rates in bit/s, times in ms or s, queues and windows in packets."""

SECONDS = 400  # of a transfer
BASE = {"rate": 100e6, "rtt": 100, "queue": 100, "packet": 1500, "window": 43}

# The paths on which a published evaluation compared its tuner with GridFTP-APT; the queue where it
# says one.
DEVELOPMENT = {
    "P1": ("drop-tail, 100 ms, queue 833", {"queue": 833}),
    "P2": ("drop-tail, 40 ms, queue 100", {"rtt": 40}),
    "P3": ("RED, 40 ms", {"rtt": 40, "discipline": "RED"}),
    "P4": ("RED, 100 ms", {"discipline": "RED"}),
    "P5": ("100, then 40, then 160 ms, at 130 and 260 s", {"queue": 400, "events": "130 rtt 40 260 rtt 160"}),
    "P6": ("60 ms, 8 other flows from 130 to 260 s", {"rtt": 60, "others": "130 260 8"}),
    "P7": ("60 ms, 40, then 150, then 60 Mbit/s", {"rtt": 60, "rate": 40e6, "events": "130 rate 150e6 260 rate 60e6"}),
}

# Ours, laid out before any tuner had run on them.
UNSEEN = {
    "H1": (
        "25 ms, window 20, queue 50, 10 others from 100 to 300 s",
        {"rtt": 25, "window": 20, "queue": 50, "others": "100 300 10"},
    ),
    "H2": ("50 Mbit/s, 200 ms, queue 200", {"rate": 50e6, "rtt": 200, "queue": 200}),
    "H3": ("80 ms, window 86, 0.3 % random loss", {"rtt": 80, "window": 86, "queue": 300, "loss": 0.003}),
    "H4": ("80 ms, window 86, queue 200, 6 others always", {"rtt": 80, "window": 86, "queue": 200, "others": "0 400 6"}),
    "H5": (
        "40 to 160 ms in 12 steps of 10 ms, queue 150",
        {"rtt": 40, "queue": 150, "events": " ".join(f"{30 * i} rtt {40 + 10 * i}" for i in range(1, 13))},
    ),
    "H6": (
        "20 ms, queue 50, 100, then 30, then 100 Mbit/s",
        {"rtt": 20, "queue": 50, "events": "130 rate 30e6 260 rate 100e6"},
    ),
    "H7": ("60 ms, queue 150, 25 short transfers a second (9 Mbit/s)", {"rtt": 60, "queue": 150, "mice": 25}),
    "H8": ("50 ms, queue of 15 packets", {"rtt": 50, "queue": 15}),
}

FIXED = (8, 16, 32, 64)


def path(changes):
    return {**BASE, **changes}


def known(changes):
    """Options of a tuner that was told round trip and window, as a transfer knows them when it begins."""
    at = path(changes)
    return ["--rtt", f"{at['rtt']}ms", "--window", f"{at['window'] * at['packet']}B"]


def tuner(name, changes):
    """Command words: a number is so many streams always; `blind` is pilot without the window."""
    if isinstance(name, int):
        return ["fixed", "--first", str(name)]
    if name == "blind":
        return ["pilot", "--rtt", f"{path(changes)['rtt']}ms"]
    return [name, *known(changes)]


def plan():
    """Every transfer, the ones that matter most first: (scenario, tuner, connections, seed)."""
    every = {**DEVELOPMENT, **UNSEEN}
    runs = [(at, name, "fresh", 1) for at in DEVELOPMENT for name in ("apt", "pilot")]
    runs += [(at, "pilot", "kept", 1) for at in every]
    runs += [(at, name, "fresh", 1) for at in UNSEEN for name in ("apt", "pilot")]
    runs += [(at, 32, kind, 1) for kind in ("fresh", "kept") for at in (*UNSEEN, *DEVELOPMENT)]
    runs += [(at, number, "fresh", 1) for number in (16, 64, 8) for at in every]
    runs += [(at, name, "fresh", 1) for at in every for name in ("track", "apt-long")]
    runs += [(at, 16, "kept", 1) for at in every]
    runs += [(at, name, "fresh", 2) for at in every for name in ("apt", "pilot")]
    runs += [(at, "blind", "fresh", 1) for at in DEVELOPMENT]
    runs += [(at, "pilot", "kept", 2) for at in every]
    return runs


# Run in ns-3 too, which costs half a minute of a processor each.
SECOND = ("P1", "P2", "P4", "P7", "H8")
SECOND_TUNERS = ((16, "fresh"), (32, "fresh"), ("apt", "fresh"), ("pilot", "fresh"), ("pilot", "kept"))


def second_plan():
    return [(at, name, connections, 1) for name, connections in SECOND_TUNERS for at in SECOND]
