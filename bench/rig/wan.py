"""Two network namespaces, joined by a link with a delay."""

import fcntl
import os
import struct
import subprocess

from .measure import Failure, guarded

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000


class Wan:
    """The client runs in `near`, the servers in `far`; `rtt` is in milliseconds."""

    near_address = "10.199.0.1"
    far_address = "10.199.0.2"

    def __init__(self, delay_link, rtt, directory):
        self.hosts = directory / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost\n{self.near_address} near\n{self.far_address} far\n")
        self.names = [f"ropewalk-{os.getpid()}-{end}" for end in ("near", "far")]
        self.link = None
        self.made = []
        try:
            self.open(delay_link, rtt)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            detail = getattr(error, "stderr", None) or error
            raise Failure(f"no network namespaces or TUN devices here (needs root): {detail}") from error

    def open(self, delay_link, rtt):
        devices = []
        addresses = (self.near_address, self.far_address)
        try:
            for end, name in enumerate(self.names):
                device = f"rw{os.getpid()}{'nf'[end]}"
                fd = os.open("/dev/net/tun", os.O_RDWR)
                devices.append(fd)
                fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
                ip("netns", "add", name)
                self.made.append(name)
                ip("link", "set", "dev", device, "netns", name)
                ip("-n", name, "address", "add", addresses[end], "peer", addresses[1 - end], "dev", device)
                ip("-n", name, "link", "set", device, "up")
                ip("-n", name, "link", "set", "lo", "up")
            self.link = subprocess.Popen(
                guarded([delay_link, rtt / 2]), stdin=devices[0], stdout=devices[1], stderr=subprocess.PIPE
            )
        finally:
            for fd in devices:
                os.close(fd)

    @property
    def near(self):
        return self.prefix(0)

    @property
    def far(self):
        return self.prefix(1)

    def prefix(self, end):
        """Returns a command prefix that runs a command at one end. GCT resolves addresses, so they
        get names."""
        script = f'mount --bind "{self.hosts}" /etc/hosts && exec "$@"'
        return ["ip", "netns", "exec", self.names[end], "sh", "-c", script, "sh"]

    def close(self):
        if self.link:
            self.link.kill()
            self.link.wait()
        for name in self.made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        self.made = []


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
