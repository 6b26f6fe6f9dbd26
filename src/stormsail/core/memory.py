"""Memory of this machine, asked before something large is allocated.

An allocation beyond what there is ends in a killed process or in the allocator's own words; an
estimate before it can name the setting to lower.
"""

import os
import resource
from pathlib import Path

from stormsail.core.errors import ConfigError

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_STATM = Path("/proc/self/statm")


def available_memory() -> int:
    """Return how many bytes this process may still take: machine, container and own limit."""
    return max(0, min(_of_machine(), _of_container(), _of_process()))


def check_memory(needed: int, *, what: str, found: str, remedy: str) -> None:
    """Refuse what would need more memory than there is.

    Args:
        needed: bytes, at the least.
        what: needs them.
        found: sizes that were asked for, in words.
        remedy: what to lower.

    Raises:
        ConfigError: if there is less.
    """
    available = available_memory()
    if needed > available:
        raise ConfigError(
            "out-of-memory",
            wrong=f"{what} must fit into the {gigabytes(available)} of memory that are free",
            found=f"{found}, which take at least {gigabytes(needed)}",
            remedy=remedy,
        )


def gigabytes(size: int) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1e9:,.1f} GB"


def _of_machine() -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_container() -> int:
    """Return what a control group leaves; without one, no bound.

    Cached pages of files that nobody has touched lately are given back when memory is asked for.
    """
    try:
        most = int((_GROUP / "memory.max").read_text())  # `max` where there is no limit
        used = int((_GROUP / "memory.current").read_text())
        fields = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return most - used + int(fields["inactive_file"])
    except (OSError, ValueError, KeyError):
        return _of_machine()


def _of_process() -> int:
    """Return what the limit of this process's address space leaves."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return _of_machine()
    try:
        used = int(_STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        used = 0
    return limit - used
