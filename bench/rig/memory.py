"""Memory that is the machine's own before a program is measured.

A virtual machine may tell its host which pages are free, and the host takes them back. The first touch of such a page costs
far more than the copy into it, and pages are told free some seconds after they were freed: how long a program takes that
fills the page cache then depends on how long ago the one before it stopped. So memory is touched before each.
"""

import errno
import mmap
import pathlib
import re

# linux/mman.h, since Linux 5.14; Python does not name it.
MADV_POPULATE_WRITE = 23
# Left to whatever else runs.
MARGIN = 1 << 30
HUGE = 1 << 21
# Which blocks of pages a program gets is the kernel's choice; small ones are spread.
LEAST = 4 << 30


def touch(size):
    """Touches free memory, twice the bytes that are to be written where there is that much, and frees it again.

    It is taken back again after some seconds, so that a program that takes long may still pay for a part.
    """
    size = min(max(2 * size, LEAST), free() - MARGIN) // HUGE * HUGE
    if size <= 0:
        return
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        # A limit on memory that programs reserve.
        return
    with memory:
        try:
            # Whole blocks of pages: it is in those that the host takes memory.
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(MADV_POPULATE_WRITE)
        except OSError as error:
            # An older kernel, or one without huge pages: one write to each page.
            if error.errno == errno.EINVAL:
                memory[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)


def free():
    """Bytes of memory that nothing uses, not even as a cache."""
    found = re.search(r"MemFree:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return int(found.group(1)) * 1024 if found else 0
