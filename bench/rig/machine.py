"""Describes the machine of the measurements."""

import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys


def find(program):
    """Returns the path of a program; also searches directories that are only in root's PATH."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def ropewalk(root, given):
    """Returns the program to measure; builds it if none is given."""
    if given:
        path = pathlib.Path(given).resolve()
    else:
        subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "ropewalk"], cwd=root, check=True)
        path = root / "target" / "release" / "ropewalk"
    if not path.is_file():
        sys.exit(f"bench: {path} does not exist")
    return path


def delay_link(root):
    """Builds the program that joins two TUN devices, and returns its path."""
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "ropewalk-bench"], cwd=root, check=True)
    return root / "target" / "release" / "delay-link"


def describe(disk, rounds, missing):
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu.group(1) if cpu else "unknown",
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory.group(1)) / 2**20) if memory else None,
        "kernel": ".".join(os.uname().release.split(".")[:2]),
        "congestion": congestion(),
        "disk": file_system(disk),
        "rounds": rounds,
        "load": os.getloadavg()[0],
        "programs": {name: version(name) for name in VERSIONS if find(name)},
        "missing": missing,
    }


def congestion():
    """Returns the host's default TCP congestion control."""
    try:
        return pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "unknown"


def file_system(path):
    """Returns the type of the file system of a path."""
    path = os.path.realpath(path)
    mounts = [line.split()[1:3] for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    above = [mount for mount in mounts if path == mount[0] or path.startswith(mount[0].rstrip("/") + "/")]
    return max(above, key=lambda mount: len(mount[0]), default=["", "unknown"])[1]


VERSIONS = {
    "globus-gridftp-server": ["-version"],
    "globus-url-copy": ["-version"],
    "curl": ["--version"],
    "vsftpd": None,
    "rsync": ["--version"],
    "iperf3": ["--version"],
}


def version(name):
    """Returns the first version number in the output of a program."""
    arguments = VERSIONS[name]
    if arguments is None:
        told = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", name], capture_output=True, text=True)
    else:
        told = subprocess.run([find(name), *arguments], capture_output=True, text=True)
    number = re.search(r"\d+\.\d+(\.\d+)?", told.stdout + told.stderr)
    return number.group(0) if number else "unknown"
