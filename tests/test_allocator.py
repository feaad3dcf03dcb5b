"""malloc keeps what is freed: tensors of the same size come back without new pages."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from quatsphere.allocator import keep_freed_memory
assert keep_freed_memory()
for _ in range(8):
    torch.ones(2**22).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**22).sum()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again() -> None:
    """16 MB are 4,096 pages: twenty times as many are touched anew without it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4096
