"""Copies in the lab: hosts in network namespaces, with emulated paths between them. Requires root."""

import contextlib
import json
import pathlib
import re
import subprocess
import time

ROPEWALK = pathlib.Path(__file__).resolve().parent.parent.parent / "target/release/ropewalk"
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

    def serve(self, host, root, *more, anonymous="--anonymous"):
        address = self.address(host)
        words = [ROPEWALK, "serve", anonymous, "--root", root, "--listen", f"{address}:2811", *more]
        self.start(host, words, "Server listening at ")
        return f"ftp://{address}:2811"

    def start(self, host, words, ready):
        """Starts a program at a host, and waits for a line that begins with `ready`."""
        server = subprocess.Popen(self.command(host, *words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.servers.append(server)
        if not any(line.startswith(ready) for line in server.stdout):
            raise SystemExit(f"{words[1]} at {host} does not start")

    def copy(self, options, source, place):
        out = place / "out"
        out.unlink(missing_ok=True)
        words = self.command("here", "env", f"XDG_STATE_HOME={place / 'state'}", ROPEWALK, "cp", "--json", *options, source, out)
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{options}: {done.stderr}")
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["rm", "-r", place / "state"], check=False)
        summary = json.loads(done.stdout.strip().splitlines()[-1])
        return summary["bytes"] * 8 / summary["seconds"] / 1e6
