"""Makes sure that free memory is backed by the host before a program is measured.

A virtual machine may report free pages to its host, which then reclaims them. The first access to
such a page costs far more than the copy into it, and pages are reported some seconds after they
were freed: the time of a program that fills the page cache then depends on how long ago the
previous one stopped. So memory is touched before each run.
"""

import errno
import mmap
import pathlib
import re

# From linux/mman.h, since Linux 5.14; Python has no name for it.
MADV_POPULATE_WRITE = 23
# Bytes left free for other programs.
MARGIN = 1 << 30
HUGE = 1 << 21
# Minimum amount. The kernel chooses the blocks of pages that a program gets, and spreads small
# ones.
LEAST = 4 << 30


def touch(size):
    """Touches free memory, up to twice the number of bytes that the run writes, and frees it again.

    The host reclaims it after some seconds, so that a long run may still be affected.
    """
    size = min(max(2 * size, LEAST), free() - MARGIN) // HUGE * HUGE
    if size <= 0:
        return
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        # The memory that programs may reserve is limited.
        return
    with memory:
        try:
            # Use huge pages, because the host takes memory in such blocks.
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(MADV_POPULATE_WRITE)
        except OSError as error:
            # Old kernels and kernels without huge pages need a write to each page.
            if error.errno == errno.EINVAL:
                memory[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)


def free():
    """Returns the number of bytes of unused memory, without caches."""
    found = re.search(r"MemFree:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return int(found.group(1)) * 1024 if found else 0
