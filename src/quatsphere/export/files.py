"""Trained models as ONNX and pt2 files that need no quatsphere; a file is kept only if it agrees with the model.

A file takes images (batch, C, Y, X) with levels in [0, 1] and gives logits (batch, classes). It carries class names,
preprocessing and the hash of its weights: `metadata_props` of ONNX, the extra file `metadata.json` of pt2.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

import quatsphere
from quatsphere.errors import ConfigError, NumericsError
from quatsphere.export.frozen import FrozenModel
from quatsphere.storage.atomic import sha256_bytes, write_bytes
from quatsphere.storage.checkpoint import dump_tensors
from quatsphere.train.load import TrainedModel

LOGIT_TOLERANCE = 1e-4
"""Largest difference of a logit between a file and its model."""
METADATA_FILE = "metadata.json"
"""Extra file of a pt2 file."""
VERIFIED_BATCH = 64

Classifier = Callable[[Tensor], Tensor]
"""Images with levels in [0, 1] -> logits."""


@dataclass(frozen=True)
class FileFormat:
    """Conversion of a program to bytes, and of these to a function."""

    write: Callable[[ExportedProgram, dict[str, Any]], bytes]
    read: Callable[[bytes], Classifier]


def export_model(trained: TrainedModel, path: Path, to: str, images: Tensor) -> float:
    """Write a verified file and return the largest difference from the model's logits on uint8 images (n, C, Y, X).

    NumericsError, and no file, if a logit differs by more than `LOGIT_TOLERANCE` or an image is classified differently.
    """
    if to == "onnx":
        require_onnx()
    program = export_program(frozen_model(trained), images.shape[1:])
    data = FORMATS[to].write(program, file_metadata(trained))
    difference = verified_difference(FORMATS[to].read(data), trained, images, path)
    write_bytes(path, data)
    return difference


def frozen_model(trained: TrainedModel) -> FrozenModel:
    """Inference module of a trained model, with its normalisation."""
    return FrozenModel(trained.model, trained.meta["mean"], trained.meta["std"])


def verified_difference(classify: Classifier, trained: TrainedModel, images: Tensor, path: Path) -> float:
    """Largest difference of a logit; NumericsError if it exceeds `LOGIT_TOLERANCE` or an image has another class."""
    batches = [images[:1], *images[1:].split(VERIFIED_BATCH)]  # the file must take batches of several sizes
    found = torch.cat([classify(batch.float() / 255) for batch in batches if len(batch)])
    expected = trained.logits(images)
    difference = float((found - expected).abs().max())
    others = int((found.argmax(1) != expected.argmax(1)).sum())
    if not difference <= LOGIT_TOLERANCE or others:  # the first is also true for NaN
        raise NumericsError(
            f"the {path.suffix[1:]} file differs from the model by {difference:.1e} (at most {LOGIT_TOLERANCE:.0e} is "
            f"allowed) and names another class for {others} of {len(images)} images; {path.name} is not written, "
            "please report it"
        )
    return difference


def require_onnx() -> None:
    """Raise ConfigError if the packages of the extra `export` are missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--to onnx needs onnx, onnxscript and onnxruntime; pip install 'quatsphere[export]', or use --to pt2"
        ) from error


def file_metadata(trained: TrainedModel) -> dict[str, Any]:
    """Facts that a file carries."""
    config = trained.config
    return {
        "classes": list(trained.classes),
        "preprocessing": {
            "size": config.model.image_size,
            "channels": config.model.in_channels,
            "fit": config.data.fit,
            "levels": [0, 1],
            "mean": list(trained.meta["mean"]),
            "std": list(trained.meta["std"]),
            "normalisation": "inside the file",
        },
        "weights_sha256": sha256_bytes(dump_tensors(trained.model.state_dict())),
        "model": config.model.name,
        "data": config.data.name,
        "data_fingerprint": trained.meta["fingerprint"],
        "step": trained.step,
        "quatsphere": quatsphere.__version__,
    }


def export_program(frozen: FrozenModel, shape: tuple[int, ...]) -> ExportedProgram:
    """Program of a frozen model for any number of images of a shape (C, Y, X), without paths of this machine."""
    with _quiet():
        program = torch.export.export(frozen, (torch.rand(2, *shape),), dynamic_shapes=({0: Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def pt2_bytes(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Content of a file for `torch.export.load`."""
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer, extra_files={METADATA_FILE: json.dumps(metadata)})
    return buffer.getvalue()


def read_pt2(data: bytes) -> Classifier:
    """Classifier of a pt2 file."""
    with _quiet():
        module = torch.export.load(io.BytesIO(data)).module()

    def classify(images: Tensor) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = module(images)
        return logits

    return classify


def onnx_bytes(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Content of an ONNX file with the input `images`, the output `logits` and the axis `batch`."""
    with _quiet():
        converted = torch.onnx.export(
            program, dynamo=True, external_data=False, input_names=["images"], output_names=["logits"], verbose=False
        )
    assert converted is not None
    model = converted.model_proto
    del model.graph.value_info[:], model.graph.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for item in (*model.graph.input, *model.graph.output, *model.graph.node):
        del item.metadata_props[:]
    for key, fact in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, fact if isinstance(fact, str) else json.dumps(fact)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def read_onnx(data: bytes) -> Classifier:
    """Classifier of an ONNX file in onnxruntime, with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


FORMATS = {"onnx": FileFormat(onnx_bytes, read_onnx), "pt2": FileFormat(pt2_bytes, read_pt2)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out remarks of torch's exporters, for example about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
