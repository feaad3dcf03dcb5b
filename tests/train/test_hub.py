"""Models on the Hugging Face Hub: pushed and pulled by a real second process, over a stand-in on the loopback."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_hub import fake_hub

from quatsphere.storage.model_folder import MODEL_CONFIG, MODEL_FILES, MODEL_WEIGHTS, shipped_models

pytest.importorskip("huggingface_hub")

SCRIPT = """
import json, sys
import torch
import quatsphere
from quatsphere.errors import QuatsphereError
from quatsphere.train.load import TrainedModel

model = quatsphere.load("digits-qsv")
address = model.push_to_hub("me/digits", licence="bsd-3-clause")
pulled = TrainedModel.from_pretrained("me/digits")
again = quatsphere.load("hf://me/digits@main")
images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
same = all(torch.equal(model(images), other(images)) for other in (pulled, again))
local = TrainedModel.from_pretrained(sys.argv[1])
errors = []
for name in sys.argv[2:]:
    try:
        quatsphere.load(name)
        errors.append([0, ""])
    except QuatsphereError as error:
        errors.append([error.exit_code, str(error)])
print(json.dumps({"address": address, "same": same, "classes": pulled.classes, "local": repr(local), "errors": errors}))
"""

REFUSED = {
    "hf://me/flipped": (4, "model.safetensors: hash differs from config.json"),
    "hf://me/huge": (4, "model.safetensors of hf://me/huge has 9999999999999 bytes instead of at most"),
    "hf://me/unsealed": (4, "config.json: not as 'quatsphere pack' wrote it"),
    "hf://me/pickled": (4, "hf://me/pickled has no config.json: not a model of quatsphere"),
    "hf://me/nothing": (4, "cannot pull hf://me/nothing ("),
    "hf://nothing": (2, "a repository of the Hub is written OWNER/NAME: got 'nothing'"),
}


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a second process that pushes and pulls models, and the requests that the Hub received."""
    folder = shipped_models()["digits-qsv"]
    good = {name: (folder / name).read_bytes() for name in MODEL_FILES}
    flipped = bytearray(good[MODEL_WEIGHTS])
    flipped[-1] ^= 1
    files: dict[str, dict[str, bytes]] = {
        "me/flipped": {**good, MODEL_WEIGHTS: bytes(flipped)},
        "me/huge": dict(good),
        "me/unsealed": {**good, MODEL_CONFIG: good[MODEL_CONFIG].replace(b"apache-2.0", b"apache-3.0")},
        "me/pickled": {"pytorch_model.bin": pickle.dumps({"weight": 1})},
    }
    home = tmp_path_factory.mktemp("home")
    with fake_hub(files) as (address, hub):
        hub.sizes["me/huge"] = {MODEL_WEIGHTS: 9_999_999_999_999}
        places = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"}
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(folder), *REFUSED],
            cwd=home, capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, **places, **quiet, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return {**json.loads(done.stdout.splitlines()[-1]), "files": files, "requests": hub.requests}


def test_pushed_model_is_pulled_with_the_same_logits(exchange: dict[str, Any]) -> None:
    assert exchange["same"]
    assert exchange["classes"] == list("0123456789")
    assert "/me/digits/commit/" in exchange["address"]
    assert set(exchange["files"]["me/digits"]) == set(MODEL_FILES)
    assert b"license: bsd-3-clause" in exchange["files"]["me/digits"]["README.md"]


def test_a_local_folder_needs_no_hub(exchange: dict[str, Any]) -> None:
    assert exchange["local"].startswith("TrainedModel(qsv on digits")
    assert not any("digits-qsv" in request for request in exchange["requests"])


@pytest.mark.parametrize("name", REFUSED)
def test_missing_and_altered_models_are_refused(exchange: dict[str, Any], name: str) -> None:
    code, message = exchange["errors"][list(REFUSED).index(name)]
    assert code == REFUSED[name][0]
    assert REFUSED[name][1] in message
    assert "\n" not in message


def test_refused_weights_are_not_fetched(exchange: dict[str, Any]) -> None:
    fetched = [request for request in exchange["requests"] if "/resolve/" in request]
    assert not any("huge/resolve/" in request and MODEL_WEIGHTS in request for request in fetched)
    assert not any("pickled/resolve" in request for request in fetched)


def test_folder_of_the_model_is_not_changed(exchange: dict[str, Any]) -> None:
    assert sorted(path.name for path in Path(shipped_models()["digits-qsv"]).iterdir()) == sorted(MODEL_FILES)
