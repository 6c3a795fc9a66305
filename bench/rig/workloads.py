"""The workloads: each function yields workloads with a cell for every program and its options."""

import itertools
import os
import pathlib
import shutil
import subprocess

from . import machine, servers
from .measure import Cell, Failure, Workload, run

# Numbers of streams to measure.
STREAMS = (1, 4, 16)


def nothing(*_):
    pass


def expect_size(path, size):
    def check(_):
        found = path.stat().st_size if path.exists() else None
        if found != size:
            raise Failure(f"{path} has {found} bytes instead of {size}")

    return check


def expect_tree(path, count, size):
    def check(_):
        files = [file for file in path.rglob("*") if file.is_file()]
        wrong = [file for file in files if file.stat().st_size != size]
        if len(files) != count or wrong:
            raise Failure(f"{path} has {len(files)} files instead of {count}, {len(wrong)} with a wrong size")

    return check


def remover(path):
    """Removes the destination, and flushes earlier writes to disk, so that no program waits for
    those of another."""

    def prepare():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        os.sync()

    return prepare


def keeper(path):
    """Makes room for the destination by renaming the previous one instead of removing it."""
    kept = itertools.count()

    def prepare():
        if path.exists():
            path.rename(path.with_name(f"{path.name}-{next(kept)}"))
        os.sync()

    return prepare


class Programs:
    """Builds cells for the installed programs."""

    def __init__(self, bench, client=(), server=None, address="127.0.0.1"):
        self.bench = bench
        self.servers = server if server is not None else bench.servers
        self.client = list(client)
        self.address = address
        self.cells = []

    def add(self, group, label, argv, server=None, env=None, **attributes):
        argv = [*self.client, *argv]
        self.cells.append(Cell(group, label, lambda: run(argv, env), server, **attributes))

    def ours(self, label, words, source, destination, at="ropewalk", **attributes):
        server = self.servers.get(at)
        if server:
            argv = [self.bench.binary, "cp", "--quiet", *words, source(server), destination(server)]
            # Use neither the settings nor the journals of the user who runs the benchmark.
            home = str(self.bench.disk / "home")
            env = {"XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home}
            self.add("ours", f"ropewalk {label}".strip(), argv, server, env, **attributes)

    def gct(self, words, source, destination, **attributes):
        server = self.servers.get("gct")
        if server:
            argv = [machine.find("globus-url-copy"), *words, source(server), destination(server)]
            label = " ".join(["globus-url-copy", *words])
            self.add("gct", label, argv, server, {"GLOBUS_HOSTNAME": self.address}, **attributes)

    def ours_in_all_ways(self, words, source, destination):
        """Without options, and with each number of streams, with and without checksums."""
        self.ours(" ".join(words), words, source, destination, plain=True, checksums=True)
        none = ["--checksum", "none"]
        self.ours(" ".join([*words, *none]), [*words, *none], source, destination)
        for streams in STREAMS:
            for checksum in ([], none):
                options = [*words, "-p", str(streams), *checksum]
                self.ours(" ".join(options), options, source, destination, checksums=not checksum)

    def ours_directly(self, source, destination):
        """With direct I/O at the destination, which is the client or the server."""
        for checksum in ([], ["--checksum", "none"]):
            options = ["--direct-io", "always", *checksum]
            self.ours(" ".join(options), options, source, destination, at="ropewalk-direct", checksums=not checksum)


def fixed(text):
    return lambda _: str(text)


def large_get(bench, wanted):
    """One large file from a server: to nowhere, and to a new file on disk."""
    size = bench.sizes.large
    for key, title in (("large-get-null", "large file, get, to nowhere"), ("large-get-disk", "large file, get, to a fresh file on disk")):
        if not wanted(title):
            continue
        to_disk = key.endswith("disk")
        target = bench.disk / "copy"
        programs = Programs(bench)
        remote = lambda server: server.url(bench.large)
        programs.ours_in_all_ways([], remote, fixed(target if to_disk else "null:"))
        destination = fixed(f"file://{target if to_disk else '/dev/null'}")
        gct_in_all_ways(programs, remote, destination)
        vsftpd = bench.servers.get("vsftpd")
        if vsftpd:
            argv = ["curl", "-q", "-sS", "-o", target if to_disk else "/dev/null", remote(vsftpd)]
            programs.add("curl", "curl with vsftpd", argv, vsftpd, plain=True)
        if to_disk:
            programs.ours_directly(remote, fixed(target))
            others_to_disk(bench, programs, bench.large, target)
        else:
            iperf(bench, programs, size, ["-R"])
        check = expect_size(target, size) if to_disk else nothing
        yield Workload(key, title, size, 1, programs.cells, remover(target), check)


def large_put(bench, wanted):
    """One large file to a server: to nowhere, and to a new file on disk."""
    size = bench.sizes.large
    for key, title in (("large-put-null", "large file, put, to nowhere"), ("large-put-disk", "large file, put, to a fresh file on disk")):
        if not wanted(title):
            continue
        to_disk = key.endswith("disk")
        target = bench.disk / "copy"
        programs = Programs(bench)
        remote = lambda server: server.url(target if to_disk else "/dev/null")
        programs.ours_in_all_ways([], fixed(bench.large), remote)
        gct_in_all_ways(programs, fixed(f"file://{bench.large}"), remote)
        vsftpd = bench.servers.get("vsftpd")
        if vsftpd:
            # vsftpd cannot truncate /dev/null; appending to it has the same effect.
            append = [] if to_disk else ["-a"]
            argv = ["curl", "-q", "-sS", *append, "-T", bench.large, remote(vsftpd)]
            programs.add("curl", "curl with vsftpd", argv, vsftpd, plain=True)
        if to_disk:
            programs.ours_directly(fixed(bench.large), remote)
            others_to_disk(bench, programs, bench.large, target)
        else:
            iperf(bench, programs, size, [])
        check = expect_size(target, size) if to_disk else nothing
        yield Workload(key, title, size, 1, programs.cells, remover(target), check)


def gct_in_all_ways(programs, source, destination):
    """Without options, and with options that make it faster."""
    programs.gct([], source, destination, plain=True)
    for streams in STREAMS:
        programs.gct(["-p", str(streams)], source, destination)
    programs.gct(["-fast"], source, destination)
    programs.gct(["-p", "4", "-bs", "1M"], source, destination)


def iperf(bench, programs, size, words):
    server = bench.servers.get("iperf3")
    if not server:
        return
    for label, options in (("iperf3", []), ("iperf3 -P 4", ["-P", "4"]), ("iperf3 -Z", ["-Z"])):
        argv = ["iperf3", "-c", server.host, "-p", server.port, "-n", str(size), *words, *options]
        programs.add("iperf3", label, argv, server, plain=not options)


def others_to_disk(bench, programs, source, target):
    daemon = bench.servers.get("rsync")
    if daemon:
        argv = ["rsync", "-rt", "--whole-file", f"rsync://{daemon.host}:{daemon.port}/all{source}", target]
        programs.add("rsync", "rsync from a daemon", argv, daemon, plain=True)
    programs.add("cp", "cp -r", ["cp", "-r", source, target], plain=True)


def trees_get(bench, wanted):
    """Many files from a server to the same file system."""
    for key, source, (count, size) in (("medium", bench.medium, bench.sizes.medium), ("small", bench.small, bench.sizes.small)):
        title = f"{count} files of {human(size)}, get"
        if not wanted(title):
            continue
        target = bench.disk / "tree"
        programs = Programs(bench)
        remote = lambda server, source=source: server.url(f"{source}/")
        programs.ours_in_all_ways(["-r"], remote, fixed(f"{target}/"))
        gct_trees(programs, remote, fixed(f"file://{target}/"))
        tree_peers(bench, programs, source, target)
        vsftpd = bench.servers.get("vsftpd")
        # With files of 1 MiB this pair pauses for a third of a second after each file: that takes
        # minutes and shows nothing new.
        if vsftpd and key == "small":
            listed = curl_list(bench, vsftpd, source, target)
            programs.add("curl", "curl with vsftpd, one session", ["curl", "-q", "-sS", "-K", listed], vsftpd, plain=True)
        check = expect_tree(target, count, size)
        yield Workload(f"{key}-get", title, count * size, count, programs.cells, remover(target), check)


def trees_put(bench, wanted):
    """Many files to a server on the same file system."""
    for key, source, (count, size) in (("medium", bench.medium, bench.sizes.medium), ("small", bench.small, bench.sizes.small)):
        title = f"{count} files of {human(size)}, put"
        if not wanted(title):
            continue
        target = bench.disk / "tree"
        programs = Programs(bench)
        remote = lambda server: server.url(f"{target}/")
        programs.ours_in_all_ways(["-r"], fixed(f"{source}/"), remote)
        gct_trees(programs, fixed(f"file://{source}/"), remote)
        tree_peers(bench, programs, source, target)
        check = expect_tree(target, count, size)
        yield Workload(f"{key}-put", title, count * size, count, programs.cells, remover(target), check)


def fresh_trees(bench, wanted):
    """Small files on a file system from which no file was removed recently.

    Before ext4 uses an inode, it checks every inode that was freed in the last minutes: if the tree
    of the previous program was removed, as in the other workloads, this takes most of the time of
    each program. Here each program's tree stays until the end, and is in a separate part of the
    disk (ext4 places directories with the attribute T as the tops of unrelated trees).
    """
    count, size = bench.sizes.small
    for way in ("get", "put"):
        title = f"{count} files of {human(size)}, {way}, where none was removed"
        if not wanted(title):
            continue
        place = bench.directory(bench.disk)
        # Other file systems do not have this attribute and do not need it.
        subprocess.run(["chattr", "+T", place], capture_output=True)
        target = place / "tree"
        programs = Programs(bench)
        remote = lambda server, path=bench.small: server.url(f"{path}/")
        there = lambda server, path=target: server.url(f"{path}/")
        if way == "get":
            programs.ours_in_all_ways(["-r"], remote, fixed(f"{target}/"))
            gct_trees(programs, remote, fixed(f"file://{target}/"))
        else:
            programs.ours_in_all_ways(["-r"], fixed(f"{bench.small}/"), there)
            gct_trees(programs, fixed(f"file://{bench.small}/"), there)
        tree_peers(bench, programs, bench.small, target)
        check = expect_tree(target, count, size)
        yield Workload(f"small-{way}-fresh", title, count * size, count, programs.cells, keeper(target), check)


def gct_trees(programs, source, destination):
    programs.gct(["-r", "-cd"], source, destination, plain=True)
    for words in (["-fast"], ["-pp"], ["-cc", "4"], ["-cc", "16"], ["-cc", "4", "-fast"], ["-cc", "16", "-pp"], ["-p", "4", "-fast"]):
        programs.gct(["-r", "-cd", *words], source, destination)


def tree_peers(bench, programs, source, target):
    programs.add("cp", "cp -r", ["cp", "-r", source, target], plain=True)
    daemon = bench.servers.get("rsync")
    if daemon:
        programs.add("rsync-local", "rsync -r, both local", ["rsync", "-rt", "--whole-file", f"{source}/", f"{target}/"], plain=True)
        argv = ["rsync", "-rt", "--whole-file", f"rsync://{daemon.host}:{daemon.port}/all{source}/", f"{target}/"]
        programs.add("rsync", "rsync from a daemon", argv, daemon, plain=True)


def curl_list(bench, server, source, target):
    """Writes a configuration for curl that names every file, and returns its path."""
    listed = bench.disk / f"curl-{source.name}"
    with open(listed, "w") as out:
        out.write("create-dirs\n")
        for file in sorted(pathlib.Path(source).rglob("f*")):
            out.write(f'url = "{server.url(file)}"\noutput = "{target / file.relative_to(source)}"\n')
    return listed


def far_trees(bench, wanted):
    """Small files over a long path."""
    (count, size), rtt = bench.sizes.far, bench.sizes.rtt
    titles = {way: f"{count} files of {human(size)}, {rtt} ms away, {way}" for way in ("get", "put", "third-party")}
    if not any(wanted(title) for title in titles.values()):
        return
    wan = bench.open_wan()
    if wan is None:
        return
    far = {}
    starters = {"ropewalk": (servers.ropewalk, [bench.binary]), "gct": (servers.gct, [])}
    for name, (start, arguments) in starters.items():
        if name in bench.servers:
            far[name] = start(*arguments, host=wan.far_address, within=wan.far)
            bench.callback(far[name].stop)
    target = bench.disk / "tree"
    remote_source = lambda server: server.url(f"{bench.far}/")
    remote_target = lambda server: server.url(f"{target}/")
    ends = {
        "get": (remote_source, fixed(f"{target}/"), remote_source, fixed(f"file://{target}/")),
        "put": (fixed(f"{bench.far}/"), remote_target, fixed(f"file://{bench.far}/"), remote_target),
        "third-party": (remote_source, remote_target, remote_source, remote_target),
    }
    for way, title in titles.items():
        if not wanted(title):
            continue
        programs = Programs(bench, wan.near, far, wan.near_address)
        source, destination, gct_source, gct_destination = ends[way]
        programs.ours("-r", ["-r"], source, destination, plain=True, checksums=True)
        programs.ours("-r --checksum none", ["-r", "--checksum", "none"], source, destination)
        programs.gct(["-r", "-cd"], gct_source, gct_destination, plain=True)
        for words in (["-fast"], ["-pp"], ["-cc", "4"], ["-cc", "16"], ["-cc", "16", "-fast"], ["-cc", "4", "-pp"], ["-cc", "16", "-pp"]):
            programs.gct(["-r", "-cd", *words], gct_source, gct_destination)
        check = expect_tree(target, count, size)
        yield Workload(f"far-{way}", title, count * size, count, programs.cells, remover(target), check)


def human(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


ALL = (large_get, large_put, trees_get, trees_put, far_trees, fresh_trees)
