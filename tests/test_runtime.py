"""With trimming disabled, malloc reuses freed memory without new pages."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from quatsphere.runtime import disable_malloc_trimming
assert disable_malloc_trimming()
for _ in range(8):
    torch.ones(2**22).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**22).sum()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_reused() -> None:
    """Twenty tensors of 16 MB (4,096 pages) cause fewer page faults than one new tensor, in one of three processes.

    The kernel may reclaim pages of an idle process at any time, which adds faults.
    """
    command = [sys.executable, "-c", PROGRAM]
    runs = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3))
    assert any(int(run.stdout) < 4096 for run in runs)
