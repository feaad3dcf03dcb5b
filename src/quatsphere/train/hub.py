"""Model folders on the Hugging Face Hub (extra `hub`): push one, pull one.

The Hub only transports files. What is pulled is verified like any model folder: sizes before a file is fetched and
before it is read, hashes before it is parsed, nothing is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quatsphere.errors import CheckpointError, ConfigError, printable
from quatsphere.storage.model_folder import (
    CARD,
    LARGEST_JSON,
    MODEL_CONFIG,
    MODEL_FILES,
    listed_sizes,
    read_model_config,
    read_model_folder,
)

HUB_PREFIX = "hf://"
"""Prefix of models on the Hub, where folders and names are accepted too: hf://OWNER/NAME or hf://OWNER/NAME@REVISION."""
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def push(folder: Path, repository: str, *, private: bool = False, revision: str | None = None) -> str:
    """Upload a verified model folder as one commit, creating the repository if needed; return the commit's address."""
    hub = require_hub(repository)
    read_model_folder(folder)
    with _hub_errors("push to", repository, "check the name, the token (HF_TOKEN) and the network"):
        api = hub.HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        files = [hub.CommitOperationAdd(name, folder / name) for name in MODEL_FILES]
        commit = api.create_commit(repository, files, commit_message="Add model", revision=revision)
    return str(commit.commit_url)


def pull(repository: str, revision: str | None = None) -> Path:
    """Fetch a model folder into the Hub's cache and return its path; `load` verifies its content.

    The sealed `config.json` is fetched first, the other files only if they are no larger than it states.
    """
    hub = require_hub(repository)
    with _hub_errors("pull", repository, "check the name, the revision and the network"):
        api = hub.HfApi()
        info = api.model_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings or []}

        def fetch(name: str, limit: int) -> Path:
            if name not in sizes:
                raise CheckpointError(f"hf://{repository} has no {name}: not a model of quatsphere; choose another")
            if sizes[name] is None or sizes[name] > limit:
                raise CheckpointError(
                    f"{name} of hf://{repository} has {sizes[name]} bytes instead of at most {limit}; not fetched"
                )
            return Path(api.hf_hub_download(repository, name, revision=info.sha))

        folder = fetch(MODEL_CONFIG, LARGEST_JSON).parent
        for name, size in listed_sizes(folder, read_model_config(folder)).items():
            fetch(name, size)
        if CARD in sizes:
            fetch(CARD, LARGEST_JSON)
    return folder


def pull_address(address: str) -> Path:
    """Fetch `hf://OWNER/NAME` or `hf://OWNER/NAME@REVISION`."""
    repository, _, revision = address.removeprefix(HUB_PREFIX).partition("@")
    return pull(repository, revision or None)


def is_repository(name: str) -> bool:
    """True for OWNER/NAME."""
    return _REPOSITORY.fullmatch(name) is not None


def require_hub(repository: str) -> Any:
    """Return the Hub's library; ConfigError if the extra `hub` is missing or the name is not OWNER/NAME."""
    if not is_repository(repository):
        raise ConfigError(f"a repository of the Hub is written OWNER/NAME: got {printable(repository)!r:.80}")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError("the Hugging Face Hub needs huggingface_hub; pip install 'quatsphere[hub]'") from error
    return huggingface_hub


@contextmanager
def _hub_errors(action: str, repository: str, cure: str) -> Iterator[None]:
    """Turn any failure of the Hub's library into one line."""
    try:
        yield
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:  # its errors derive from OSError, ValueError and httpx's own
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise CheckpointError(f"cannot {action} hf://{repository} ({printable(reason)[:160]}); {cure}") from error
