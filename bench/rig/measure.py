"""Runs a program and measures its time and the CPU time of it and its server."""

import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

from . import memory

TICK = os.sysconf("SC_CLK_TCK")
LIMIT = 300


def guarded(argv):
    """Returns a command that the kernel kills when this process ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)]


class Failure(Exception):
    """A program failed."""


def run(argv, env=None, cwd=None):
    """Runs a program to its end. Returns wall and CPU seconds, including those of its children."""
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        process = subprocess.Popen(
            guarded(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})}, cwd=cwd,
        )
        # Popen must not reap the process, because its resource usage would be lost.
        status, usage = wait(process)
        wall = time.monotonic() - begin
        if status != 0:
            output.seek(0)
            told = output.read().decode(errors="replace")[-1500:]
            raise Failure(f"{' '.join(map(str, argv))} ended with {status}: {told}")
    return wall, usage.ru_utime + usage.ru_stime


def wait(process):
    end = time.monotonic() + LIMIT
    pidfd = os.pidfd_open(process.pid)
    try:
        import select

        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(LIMIT * 1000):
            process.kill()
    finally:
        os.close(pidfd)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if time.monotonic() > end:
        raise Failure(f"{process.args} took more than {LIMIT} s")
    return process.returncode, usage


def cpu_of(pid):
    """Returns the CPU seconds of a process and its ended children. Waits until no child runs."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    end = time.monotonic() + 2
    while children.exists() and children.read_text().strip() and time.monotonic() < end:
        time.sleep(0.01)
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # utime stime cutime cstime
    return sum(int(field) for field in fields[11:15]) / TICK


class Sample:
    """One run of one cell."""

    def __init__(self, wall, client, server):
        self.wall = wall
        self.client = client
        self.server = server


class Cell:
    """A program with its options on one workload.

    `group` is the program that it counts for (ours, gct, curl ...); `plain` marks a program without
    options. `work` runs it and returns wall and CPU seconds; `prepare` and `check` are not
    measured.
    """

    def __init__(self, group, label, work, server=None, plain=False, checksums=False):
        self.group = group
        self.label = label
        self.work = work
        self.server = server
        self.plain = plain
        self.checksums = checksums
        self.samples = []
        self.failure = None

    def sample(self, prepare, check, size):
        if self.failure:
            return
        try:
            prepare()
            memory.touch(size)
            before = cpu_of(self.server.pid) if self.server else 0
            wall, client = self.work()
            server = cpu_of(self.server.pid) - before if self.server else 0
            check(self)
            self.samples.append(Sample(wall, client, server))
        except Failure as failure:
            self.failure = str(failure)

    def median(self, what):
        return statistics.median(what(sample) for sample in self.samples) if self.samples else None

    @property
    def wall(self):
        return self.median(lambda sample: sample.wall)

    @property
    def cpu(self):
        return self.median(lambda sample: sample.client + sample.server)


class Workload:
    """Cells that move the same data."""

    def __init__(self, key, title, size, files, cells, prepare, check):
        self.key = key
        self.title = title
        self.size = size
        self.files = files
        self.cells = cells
        self.prepare = prepare
        self.check = check

    def keep(self, words):
        """Keeps only the cells whose label has one of the words, and Ropewalk without options."""
        if words:
            self.cells = [c for c in self.cells if c.group == "ours" and c.plain or any(word in c.label for word in words)]

    def round(self, number):
        """Runs every cell once, in a random order: each run is affected by what the previous one
        left, such as freed inodes."""
        order = list(self.cells)
        random.Random(f"{self.key} {number}").shuffle(order)
        for cell in order:
            cell.sample(self.prepare, self.check, self.size)

    def best(self, group, **wanted):
        """Returns the fastest cell of a group among those with the wanted attributes."""
        cells = [
            cell
            for cell in self.cells
            if cell.group == group and cell.samples and all(getattr(cell, k) == v for k, v in wanted.items())
        ]
        return min(cells, key=lambda cell: cell.wall, default=None)

    def as_json(self):
        return {
            "key": self.key,
            "title": self.title,
            "bytes": self.size,
            "files": self.files,
            "cells": [
                {
                    "group": cell.group,
                    "label": cell.label,
                    "plain": cell.plain,
                    "checksums": cell.checksums,
                    "failure": cell.failure,
                    "samples": [vars(sample) for sample in cell.samples],
                }
                for cell in self.cells
            ],
        }
