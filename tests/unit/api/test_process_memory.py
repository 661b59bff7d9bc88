"""Freed memory is reused, as measured by the number of pages that the kernel maps for the process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fairlead_api.process_memory import keep_freed_memory

MAPPED = """
import resource
from fairlead_api.process_memory import keep_freed_memory

if {keeps}:
    assert keep_freed_memory()

def come_and_go():
    for _ in range(8):
        blocks = [b"x" * (4 << 20) for _ in range(5)]
        del blocks

come_and_go()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
come_and_go()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_mapped(*, keeps: bool) -> int:
    """Return how many pages a process mapped while five blocks of 4 MiB were allocated and freed again."""
    program = MAPPED.format(keeps=keeps)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def has_mallopt() -> bool:
    """Return whether the C library is glibc."""
    return hasattr(ctypes.CDLL(None), "mallopt")


@pytest.mark.skipif(not has_mallopt(), reason="only glibc gives freed memory back at once")
def test_freed_blocks_are_not_mapped_again() -> None:
    """A process maps hardly any new pages if it keeps freed memory, and thousands of pages otherwise."""
    given_back, kept = pages_mapped(keeps=False), pages_mapped(keeps=True)

    assert given_back > 1000
    assert kept < given_back / 10
    assert keep_freed_memory()


def test_another_allocator_is_left_alone() -> None:
    """With a C library other than glibc, the memory setting is not changed."""
    assert not keep_freed_memory(SimpleNamespace())
