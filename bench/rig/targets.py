"""The performance targets of Ropewalk, and whether they are met."""

# workload, group of the peer, compared value, minimum ratio (peer / ours).
WALL, CPU = "time", "CPU per byte"
TARGETS = [
    *[(f"large-{way}-null", "gct", WALL, 3.0) for way in ("get", "put")],
    *[(f"large-{way}-null", "curl", WALL, 1.3) for way in ("get", "put")],
    *[(f"large-{way}-null", "iperf3", WALL, 1.4) for way in ("get", "put")],
    *[(f"large-{way}-null", "gct", CPU, 1 / 0.45) for way in ("get", "put")],
    *[(f"large-{way}-disk", "gct", WALL, 2.3) for way in ("get", "put")],
    *[(f"large-{way}-disk", "gct", CPU, 1 / 0.5) for way in ("get", "put")],
    *[(f"{size}-{way}", "cp", WALL, 1.0) for size in ("medium", "small") for way in ("get", "put")],
    *[(f"small-{way}", "gct", WALL, 2.0) for way in ("get", "put")],
    *[(f"small-{way}-fresh", "cp", WALL, 1.0) for way in ("get", "put")],
    *[(f"small-{way}-fresh", "gct", WALL, 2.0) for way in ("get", "put")],
    *[(f"medium-{way}", "gct", WALL, 1.25) for way in ("get", "put")],
    *[(f"far-{way}", "gct without -pp and -cc", WALL, 10.0) for way in ("get", "put", "third-party")],
    *[(f"far-{way}", "gct", WALL, 2.0) for way in ("get", "put", "third-party")],
]


class Verdict:
    """One target: the ratio of the peer's best to Ropewalk without options, and to Ropewalk's best.
    """

    def __init__(self, workload, peer, what, least, plain, best):
        self.workload = workload
        self.peer = peer
        self.what = what
        self.least = least
        self.plain = plain
        self.best = best

    @property
    def met(self):
        return self.best is not None and self.best >= self.least

    @property
    def met_plain(self):
        return self.plain is not None and self.plain >= self.least

    def as_json(self):
        return {**vars(self), "workload": self.workload.key, "met": self.met, "met_as_it_comes": self.met_plain}


def judge(workloads):
    by_key = {workload.key: workload for workload in workloads}
    verdicts = []
    for key, peer, what, least in TARGETS:
        workload = by_key.get(key)
        if not workload:
            continue
        if peer == "gct without -pp and -cc":
            other = workload.best("gct", plain=True)
        else:
            other = workload.best(peer)
        plain, best = workload.best("ours", plain=True), workload.best("ours")
        if other and best:
            verdicts.append(Verdict(workload, other, what, least, ratio(other, plain, what), ratio(other, best, what)))
    for verdict in verdicts:
        verdict.peer = verdict.peer.label
    return verdicts


def ratio(other, ours, what):
    if ours is None:
        return None
    if what == WALL:
        return other.wall / ours.wall
    return other.cpu / ours.cpu if ours.cpu else None
