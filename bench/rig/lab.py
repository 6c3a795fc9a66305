"""Copies in the lab: hosts in network namespaces, with emulated paths between them. Requires root."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import time

# The program, or that of the variable ROPEWALK_BIN.
BUILT = pathlib.Path(__file__).resolve().parent.parent.parent / "target/release/ropewalk"
ROPEWALK = pathlib.Path(os.environ.get("ROPEWALK_BIN", BUILT))
LINK = """
[[links]]
between = ["{a}", "{b}"]
[links.path]
round_trip = "{rtt}ms"
both = {{ rate = "{rate}Mbit/s", queue = {queue}, loss = {loss} }}
"""


class Lab:
    """A running lab. Leaving the context ends it with all programs in it."""

    def __init__(self, name, scenario, place):
        path = place / "scenario.toml"
        path.write_text(scenario)
        self.name = f"{name}-{int(time.time() * 1000) % 10**8}"
        self.up = subprocess.Popen([ROPEWALK, "lab", "up", "--name", self.name, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.servers = []
        self.addresses = {}

    def __enter__(self):
        end = time.time() + 30
        while subprocess.run(self.command("here", "true"), capture_output=True).returncode:
            if time.time() > end or self.up.poll() is not None:
                raise SystemExit(f"the lab does not start: {self.up.stdout.read() if self.up.poll() is not None else ''}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.terminate()
        self.up.terminate()
        self.up.wait()

    def command(self, host, *words):
        return [ROPEWALK, "lab", "shell", "--lab", self.name, host, *map(str, words)]

    def address(self, host):
        listed = subprocess.run(self.command(host, "ip", "-4", "-o", "address"), capture_output=True, text=True, check=True).stdout
        return re.search(r"inet (10\.77\.\d+\.\d+)", listed).group(1)

    def serve(self, host, root, *more, anonymous="--anonymous", port=2811, state=None):
        """`state` is the directory of the server's state, if it is not the usual one."""
        address = self.address(host)
        words = [ROPEWALK, "serve", anonymous, "--root", root, "--listen", f"{address}:{port}", *more]
        if state:
            words = ["env", f"XDG_STATE_HOME={state}", *words]
        self.start(host, words, "Server listening at ")
        return f"ftp://{address}:{port}"

    def start(self, host, words, ready):
        """Starts a program at a host, and waits for a line that begins with `ready`."""
        server = subprocess.Popen(self.command(host, *words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.servers.append(server)
        if not any(line.startswith(ready) for line in server.stdout):
            raise SystemExit(f"{words[1]} at {host} does not start")

    def copy(self, options, source, place, to=None, events=None):
        """The rate of a copy in Mbit/s. `events` gets the events of the copy."""
        out = to or place / "out"
        (place / "out").unlink(missing_ok=True)
        words = self.command("here", "env", f"XDG_STATE_HOME={place / 'state'}", ROPEWALK, "cp", "--json", *options, source, out)
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{options}: {done.stderr}")
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["rm", "-r", place / "state"], check=False)
        lines = [json.loads(line) for line in done.stdout.strip().splitlines()]
        if events is not None:
            events.extend(lines)
        summary = lines[-1]
        return summary["bytes"] * 8 / summary["seconds"] / 1e6
