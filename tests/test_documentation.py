"""The documentation: its examples run, its links and commands exist, its navigation is complete."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import quatsphere
from quatsphere.cli.main import VERBS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
EXAMPLES = [
    pytest.param(code, id=f"{path.relative_to(DOCS)}-{number}")
    for path in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def nav_pages(entries: list[dict[str, object]]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        for value in entry.values():
            found += nav_pages(value) if isinstance(value, list) else [str(value)]
    return found


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_exist(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda path: path.name)
def test_no_merge_conflict_is_left(path: Path) -> None:
    assert not re.search(r"^(<{7} |={7}$|>{7} )", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_navigation_has_every_page_and_command() -> None:
    listed = nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(DOCS).as_posix() for path in PAGES}
    assert set(listed) == pages | {f"commands/{verb}.md" for verb in VERBS}


def test_the_api_page_names_public_names_only() -> None:
    """The build adds public names that the page leaves out."""
    listed = re.findall(r"^::: quatsphere\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert listed
    assert set(listed) <= set(quatsphere.__all__)


def test_commands_of_the_pages_exist() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        code = "\n".join([*re.findall(r"```\w*\n(.*?)```", text, re.DOTALL), *re.findall(r"`([^`\n]+)`", text)])
        assert set(re.findall(r"^quatsphere ([a-z]+)\b", code, re.MULTILINE)) <= set(VERBS), path.name


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == quatsphere.__version__
    assert citation["license"] == PROJECT["license"]
    assert len(citation["preferred-citation"]["authors"]) == 5


def test_the_workflow_tests_the_oldest_promised_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    versions = [entry["python"] for entry in workflow["jobs"]["test"]["strategy"]["matrix"]["include"]]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert versions == sorted(versions, key=lambda version: int(version.partition(".")[2]))


def test_the_oldest_promised_torch_is_the_pinned_one() -> None:
    promised = next(name for name in PROJECT["dependencies"] if name.startswith("torch"))
    pinned = re.search(r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert pinned[1].startswith(promised.removeprefix("torch>=") + ".")


def test_pre_commit_uses_pinned_tools() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)


def test_the_list_of_errors_is_generated() -> None:
    """`python docs/errors.py` writes the page again."""
    spec = importlib.util.spec_from_file_location("docs_errors", DOCS / "errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert text == module.page()
    for code in (*range(9), 130, 141, 143):
        assert f"| {code} | " in text
