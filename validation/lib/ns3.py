"""ns-3 from the PyPI wheel, used as a C++ library: no Python in the simulation, whose start takes 12 s each time."""

import json
import subprocess
import sys
from pathlib import Path

from .cache import digest
from .ns2 import SIM, Missing

VERSION = "3.44.post0"
MODULES = ["core", "network", "internet", "point-to-point", "applications", "traffic-control", "stats"]


class Ns3:
    def __init__(self, cache, directory: Path, may_run=True):
        self.cache, self.directory, self.may_run = cache, directory, may_run
        self.digest = digest([SIM / "onehop.cc"])
        self.program = directory / f"onehop-{self.digest}"
        self.runs = 0

    def _build(self):
        venv = self.directory / "ns3"
        found = list(venv.glob("lib/python3*/site-packages/ns3/lib64"))
        if not found:
            print("validation: installing ns3 into", venv, file=sys.stderr)
            subprocess.run(["/usr/bin/env", "python3", "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin/pip", "-q", "install", f"ns3=={VERSION}"], check=True)
            found = list(venv.glob("lib/python3*/site-packages/ns3/lib64"))
        libraries = found[0]
        command = ["g++", "-O2", "-std=c++20", f"-I{libraries.parent / 'include'}", SIM / "onehop.cc", "-o", self.program]
        command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
        command += [f"-lns3.44-{module}" for module in MODULES]
        subprocess.run(command, check=True)

    def steady(self, rtt, queue, streams, spread, seed=1, seconds=60):
        """{"all": of the whole run, "settled": after 10 s}, each with goodput (packets/ms), loss and rtt_ms."""
        words = [str(streams), str(rtt), str(queue), str(seed), str(seconds), str(spread)]
        key = f"ns3 {VERSION} {self.digest} {' '.join(words)}"
        value = self.cache.get(key)
        if value is None:
            if not self.may_run:
                raise Missing(key)
            if not self.program.exists():
                self._build()
            run = subprocess.run([self.program, *words], capture_output=True, text=True, check=True, timeout=3600)
            value = json.loads(run.stdout)
            self.cache.put(key, value)
            self.runs += 1
        return value
