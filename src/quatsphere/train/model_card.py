"""The model card of a model folder: `README.md` with the front matter of the Hugging Face Hub."""

from __future__ import annotations

import math
from typing import Any

import yaml

from quatsphere.config import RunConfig
from quatsphere.config.resolve import MODEL_CONFIGS, flat_settings, flatten
from quatsphere.errors import printable

TITLES = {
    "qsv": "Quat-Sphere-Vision",
    "attention": "dot-product attention on the lattice of Quat-Sphere-Vision",
    "resnet20": "ResNet-20",
    "linear": "softmax regression on the samples of Quat-Sphere-Vision",
}


def accuracy_interval(accuracy: float, n: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson's score interval, which stays within [0, 1])."""
    z = 1.959964
    centre, width = accuracy + z * z / (2 * n), z * math.sqrt(accuracy * (1 - accuracy) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return (centre - width) / scale, (centre + width) / scale


def model_card(name: str, config: dict[str, Any], preprocessing: dict[str, Any], files: dict[str, str]) -> str:
    """Text of the card; `config` is the content of `config.json`, `files` maps file names to SHA-256 digests."""
    settings, result = config["settings"], config["result"]
    model, data = settings["model"]["name"], settings["data"]["name"]
    parts = [
        f"---\n{_front_matter(name, config)}---",
        f"# {printable(name)}",
        f"{TITLES[model].capitalize() if model != 'qsv' else TITLES[model]} trained on `{data}`: "
        f"{preprocessing['channels']} x {preprocessing['image_size']} x {preprocessing['image_size']} images, "
        f"{len(preprocessing['classes'])} classes, {result.get('parameters', 0):,} parameters.",
        _usage(name),
        "## Accuracy\n\n" + _accuracy(result),
        "## Data\n\n" + _data(settings, result, preprocessing),
        "## Recipe\n\nSettings that differ from the defaults of quatsphere "
        + f"{config['quatsphere']}:\n\n"
        + _recipe(settings),
        "## Provenance\n\n" + _provenance(config),
        "## Files\n\n| file | SHA-256 |\n|---|---|\n"
        + "\n".join(f"| `{file}` | `{digest}` |" for file, digest in files.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(name: str, config: dict[str, Any]) -> str:
    """Metadata that the Hub reads."""
    settings, result = config["settings"], config["result"]
    fields: dict[str, Any] = {
        "license": config["licence"],
        "library_name": "quatsphere",
        "pipeline_tag": "image-classification",
        "tags": ["quatsphere", settings["model"]["name"]],
        "datasets": [settings["data"]["name"]],
    }
    if "test" in result:
        measure = {"type": "accuracy", "value": round(result["test"]["accuracy"], 4)}
        data = {"name": settings["data"]["name"], "type": settings["data"]["name"], "split": "test"}
        task = {"type": "image-classification"}
        fields["model-index"] = [{"name": name, "results": [{"task": task, "dataset": data, "metrics": [measure]}]}]
    text: str = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    return text


def _usage(name: str) -> str:
    return f"""## Use

```
quatsphere predict photo.jpg --model {name}
```

```python
import quatsphere

model = quatsphere.load("{name}")  # this folder, or its name if it came with the package
print(model.predict("photo.jpg"))
logits = model(images)  # a batch of uint8 images, or of numbers in [0, 1]; normalisation is part of the model
```"""


def _accuracy(result: dict[str, Any]) -> str:
    if "test" not in result:
        value = result.get("val_accuracy")
        return "Not tested." if value is None else f"Not tested; validation accuracy {value:.4f}, used for selection."
    test = result["test"]
    low, high = accuracy_interval(test["accuracy"], test["images"])
    rows = [
        f"| accuracy | {test['accuracy']:.4f} [{low:.4f}, {high:.4f}] |",
        f"| n, test images | {test['images']:,} |",
        f"| negative log-likelihood | {'-' if test['nll'] is None else format(test['nll'], '.4f')} |",
        f"| expected calibration error | {test['ece']:.4f} |",
        f"| validation accuracy, used for selection | {result['val_accuracy']:.4f} |",
    ]
    table = "| measure | value |\n|---|---|\n" + "\n".join(rows)
    scores = ", ".join(f"{printable(k)} {v:.3f}" for k, v in test["per_class"].items() if v is not None)
    return (
        f"{table}\n\nOne training run, one seed; the interval is of the test images alone (95 %, Wilson).\n\n"
        f"Accuracy per class: {scores}."
    )


def _data(settings: dict[str, Any], result: dict[str, Any], preprocessing: dict[str, Any]) -> str:
    mean, std = (", ".join(f"{value:.4f}" for value in preprocessing[key]) for key in ("mean", "std"))
    fingerprint = result.get("fingerprint", "unknown")
    classes = ", ".join(printable(name) for name in preprocessing["classes"])
    return (
        f"`{settings['data']['name']}`, fingerprint `{fingerprint}` (SHA-256 of class names, labels and pixels). "
        f"Images are fitted by `{preprocessing['fit']}` and normalised with mean {mean} and standard deviation {std} "
        f"of levels in [0, 1].\n\nClasses: {classes}."
    )


def _recipe(settings: dict[str, Any]) -> str:
    """Changed settings as YAML, which `quatsphere train -c FILE` reads."""
    defaults = flat_settings(RunConfig(model=MODEL_CONFIGS[settings["model"]["name"]]()))
    changed: dict[str, dict[str, Any]] = {}
    for key, value in flatten(settings).items():
        if key == "model.name" or defaults.get(key) != value:
            group, _, field = key.partition(".")
            changed.setdefault(group, {})[field] = value
    return f"```yaml\n{yaml.safe_dump(changed, sort_keys=False)}```"


def _provenance(config: dict[str, Any]) -> str:
    result = config["result"]
    seconds = result.get("seconds")
    rows = {
        "licence": config["licence"],
        "commit": result.get("commit") or "unknown",
        "seed": result.get("seed"),
        "images seen": f"{result['images_seen']:,}" if "images_seen" in result else None,
        "epochs": result.get("epochs"),
        "checkpoint": f"step {result['step']:,} of {result['steps']:,}, chosen by validation"
        if "test" in result
        else None,
        "training time": None if seconds is None else f"{seconds:,.0f} s on {result.get('threads')} threads",
        "versions": ", ".join(f"{k} {v}" for k, v in result.get("versions", {}).items()) or None,
        "started from": config["settings"]["train"].get("init"),
    }
    lines = [f"| {key} | {value} |" for key, value in rows.items() if value is not None]
    return "| | |\n|---|---|\n" + "\n".join(lines)


assert set(TITLES) == set(MODEL_CONFIGS)
