"""Data sets as uint8 tensors in memory, chosen, checked and split by content."""

from quatsphere.data.cache import cache_root, download_folder
from quatsphere.data.dataset import Dataset, Progress, Split
from quatsphere.data.download import fetch
from quatsphere.data.load import load_dataset, verify

__all__ = ["Dataset", "Progress", "Split", "cache_root", "download_folder", "fetch", "load_dataset", "verify"]
