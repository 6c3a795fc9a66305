"""ns-3 from the PyPI wheel, used as a C++ library: no Python in the simulation, whose start takes 12 s each time."""

import subprocess
import sys
from pathlib import Path

from .cache import Cache, digest
from .simulator import SIM, Simulator

VERSION = "3.44.post0"
MODULES = ["core", "network", "internet", "point-to-point", "applications", "traffic-control", "stats"]
SOURCES = {"onehop": ("path.h",), "chunks": ("path.h", "stream.h", "tuner.h")}


class Ns3(Simulator):
    STEADY = "onehop"

    def __init__(self, cache: Cache, ropewalk: str, directory: Path, may_run=True):
        super().__init__(cache, ropewalk, may_run)
        self.directory = directory
        self.digests = {
            script: digest([SIM / name for name in (*headers, f"{script}.cc")]) for script, headers in SOURCES.items()
        }

    def _known(self, script):
        return f"ns3 {VERSION} {script} {self.digests[script]}"

    def _command(self, script):
        program = self.directory / f"{script}-{self.digests[script]}"
        if not program.exists():
            self._build(script, program)
        return [program]

    def _build(self, script, program):
        venv = self.directory / "ns3"
        found = list(venv.glob("lib/python3*/site-packages/ns3/lib64"))
        if not found:
            print("validation: installing ns3 into", venv, file=sys.stderr)
            subprocess.run(["/usr/bin/env", "python3", "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin/pip", "-q", "install", f"ns3=={VERSION}"], check=True)
            found = list(venv.glob("lib/python3*/site-packages/ns3/lib64"))
        libraries = found[0]
        command = ["g++", "-O2", "-std=c++20", f"-I{libraries.parent / 'include'}", SIM / f"{script}.cc", "-o", program]
        command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
        command += [f"-lns3.44-{module}" for module in MODULES]
        subprocess.run(command, check=True)
