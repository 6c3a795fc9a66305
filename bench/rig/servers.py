"""Servers on loopback or in a network namespace. Each ends with the benchmark."""

import os
import pathlib
import subprocess
import tempfile
import time

from .machine import find
from .measure import Failure, guarded


class Server:
    """A running server. `within` is a command prefix such as `ip netns exec NAME`."""

    def __init__(self, argv, host, within=(), env=None):
        self.host = host
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*within, *guarded(argv)], stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})}, start_new_session=True,
        )
        self.port = self.wait_for_port()

    @property
    def pid(self):
        return self.process.pid

    def wait_for_port(self):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            port = listening_port(self.pid)
            if port:
                return port
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        self.output.seek(0)
        told = self.output.read().decode(errors="replace")
        self.stop()
        raise Failure(f"{self.process.args[0]} does not listen: {told[-1000:]}")

    def url(self, path):
        return f"ftp://{self.host}:{self.port}{path}"

    def stop(self):
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.output.close()


def listening_port(pid):
    """Returns the TCP port on which a process listens."""
    inodes = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(entry.path)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    return int(fields[1].rpartition(":")[2], 16)
    except OSError:
        pass
    return None


def ropewalk(binary, host="127.0.0.1", within=(), config=None):
    argv = [binary, "serve", "--listen", f"{host}:0", "--anonymous=rw", "--anonymous-third-party", "--root", "/", "--log", "error"]
    return Server([*argv, *(["--config", config] if config else [])], host, within)


def ropewalk_direct(binary, directory):
    """Starts a server that writes with direct I/O, bypassing the page cache."""
    config = pathlib.Path(directory) / "direct.toml"
    config.write_text('[files]\ndirect_io = "always"\n')
    return ropewalk(binary, config=config)


def gct(host="127.0.0.1", within=()):
    argv = [find("globus-gridftp-server"), "-p", "0", "-aa", "-home-dir", "/", "-control-interface", host, "-data-interface", host]
    if os.geteuid() == 0:
        argv += ["-anonymous-user", "root", "-allow-root"]
    return Server(argv, host, within, {"GLOBUS_HOSTNAME": host})


def vsftpd(directory, host="127.0.0.1", within=()):
    config = pathlib.Path(directory) / "vsftpd.conf"
    config.write_text(
        f"background=NO\nlisten=YES\nlisten_address={host}\nlisten_port=0\nanonymous_enable=YES\n"
        "no_anon_password=YES\nlocal_enable=NO\nanon_root=/\nrun_as_launching_user=YES\nanon_world_readable_only=NO\n"
        "anon_umask=022\nwrite_enable=YES\nanon_upload_enable=YES\nanon_mkdir_write_enable=YES\n"
        "anon_other_write_enable=YES\nconnect_from_port_20=NO\nxferlog_enable=NO\ndirmessage_enable=NO\n"
        "seccomp_sandbox=NO\nlock_upload_files=NO\n"
    )
    return Server([find("vsftpd"), config], host, within)


def rsync(directory, host="127.0.0.1", within=()):
    """Starts an rsync daemon with one module `all`, the root directory."""
    port = free_port()
    config = pathlib.Path(directory) / "rsyncd.conf"
    config.write_text(
        f"address = {host}\nport = {port}\nuse chroot = no\nreverse lookup = no\nlog file = /dev/null\n"
        "[all]\npath = /\nread only = no\nuid = 0\ngid = 0\n"
    )
    return Server([find("rsync"), "--daemon", "--no-detach", f"--config={config}"], host, within)


def iperf3(host="127.0.0.1", within=()):
    return Server([find("iperf3"), "-s", "-B", host, "-p", str(free_port())], host, within)


def free_port():
    """Returns a port that was free a moment ago, for servers that cannot choose one."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
