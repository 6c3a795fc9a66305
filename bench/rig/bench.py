"""Sets up data and servers, runs the rounds, and removes everything."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import sys
import tempfile

from . import machine, servers, workloads
from .measure import Failure
from .wan import Wan

MIB = 1 << 20
GIB = 1 << 30


@dataclasses.dataclass
class Sizes:
    """The amounts of data."""

    large: int
    medium: tuple
    small: tuple
    far: tuple
    rtt: int

    @classmethod
    def full(cls):
        return cls(large=4 * GIB, medium=(500, MIB), small=(5000, 4096), far=(200, 4096), rtt=50)

    @classmethod
    def quick(cls):
        return cls(large=256 * MIB, medium=(50, MIB), small=(500, 4096), far=(30, 4096), rtt=50)


class Bench(contextlib.ExitStack):
    """Directories, data, servers. Leaving the context removes all of them."""

    def __init__(self, root, binary, sizes, disk, memory):
        super().__init__()
        self.root = root
        self.binary = binary
        self.sizes = sizes
        self.disk_parent = disk
        self.memory_parent = memory
        self.missing = []
        # Leave through the exit stack also after a signal to terminate.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))

    def __enter__(self):
        super().__enter__()
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def open(self):
        large = self.sizes.large
        needed_on_disk = 2 * large + 3 * self.sizes.medium[0] * self.sizes.medium[1] + GIB
        self.check_room(self.disk_parent, needed_on_disk)
        self.check_room(self.memory_parent, large + 64 * MIB)
        self.disk = self.directory(self.disk_parent)
        self.memory = self.directory(self.memory_parent)
        say("making the data")
        self.large = self.memory / "large"
        fill(self.large, large)
        self.medium = self.tree("medium", *self.sizes.medium)
        self.small = self.tree("small", *self.sizes.small)
        self.far = self.tree("far", *self.sizes.far)
        self.servers = {}
        if self.binary:
            self.serve("ropewalk", servers.ropewalk, self.binary)
            self.serve("ropewalk-direct", servers.ropewalk_direct, self.binary, self.disk)
        self.serve("gct", servers.gct, needs=["globus-gridftp-server", "globus-url-copy"])
        self.serve("vsftpd", servers.vsftpd, self.disk, needs=["vsftpd", "curl"])
        self.serve("rsync", servers.rsync, self.disk, needs=["rsync"])
        self.serve("iperf3", servers.iperf3, needs=["iperf3"])

    def serve(self, name, start, *arguments, needs=()):
        absent = [program for program in needs if not machine.find(program)]
        if absent:
            self.missing += absent
            return
        server = start(*arguments)
        self.callback(server.stop)
        self.servers[name] = server

    def directory(self, parent):
        path = pathlib.Path(tempfile.mkdtemp(prefix="ropewalk-bench-", dir=parent))
        self.callback(shutil.rmtree, path, ignore_errors=True)
        path.chmod(0o755)
        return path

    def tree(self, name, count, size):
        root = self.disk / name
        for number in range(count):
            directory = root / f"d{number // 100:03}"
            if number % 100 == 0:
                directory.mkdir(parents=True)
            (directory / f"f{number:05}").write_bytes(os.urandom(size))
        return root

    def check_room(self, path, needed):
        free = shutil.disk_usage(path).free
        if free < needed:
            sys.exit(f"bench: {path} has {free / GIB:.1f} GiB free, {needed / GIB:.1f} GiB are needed")

    def open_wan(self):
        """Returns the long link, or None if this machine does not permit it."""
        try:
            wan = Wan(machine.delay_link(self.root), self.sizes.rtt, self.disk)
        except Failure as failure:
            say(str(failure))
            self.missing.append("network namespaces")
            return None
        self.callback(wan.close)
        return wan

    def run(self, rounds, only, cells=()):
        done = []
        for make in workloads.ALL:
            for workload in make(self, lambda title: not only or any(word in title for word in only)):
                workload.keep(cells)
                for number in range(rounds):
                    say(f"{workload.title}: round {number + 1} of {rounds}")
                    workload.round(number)
                workload.prepare()
                for cell in workload.cells:
                    if cell.failure:
                        say(f"{workload.title}, {cell.label}: FAILED: {cell.failure}")
                done.append(workload)
        return done


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def fill(path, size):
    """Fills a file with random bytes. The same 64 MiB are repeated, which no measured program
    detects."""
    block = os.urandom(min(size, 64 * MIB))
    with open(path, "wb") as file:
        written = 0
        while written < size:
            written += file.write(block[: size - written])
