"""ns-2, of Debian."""

import shutil

from .cache import Cache, digest
from .simulator import SIM, Simulator


class Ns2(Simulator):
    STEADY = "steady"

    def __init__(self, cache: Cache, ropewalk: str, may_run=True):
        super().__init__(cache, ropewalk, may_run)
        self.program = shutil.which("ns")
        self.digests = {script: digest([SIM / "path.tcl", SIM / f"{script}.tcl"]) for script in ("steady", "chunks")}

    def _known(self, script):
        return f"ns2 {script} {self.digests[script]}"

    def _command(self, script):
        if not self.program:
            raise SystemExit("validation: ns (Debian: ns2) is not installed")
        return [self.program, f"{script}.tcl"]
