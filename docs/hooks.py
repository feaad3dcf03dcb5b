"""Hooks of the documentation build: formulas as MathML, one page per command, links to files outside `docs/`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as etree
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
INLINE = r"(?<![\\$\w])\$(?![\s$])((?:\\.|[^$\\])+?)(?<!\s)\$(?![\w$])"
ACTIONS = re.compile(r"^    ([a-z]+) {2,}\S", re.MULTILINE)
"""Name of an action in the help of a command that has several."""


class InlineMath(InlineProcessor):
    """`$...$` as inline MathML."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(m[1])), m.start(0), m.end(0)


class BlockMath(BlockProcessor):
    """A paragraph between `$$` and `$$` as displayed MathML."""

    def test(self, parent: etree.Element, block: str) -> bool:
        return block.startswith("$$") and block.rstrip().endswith("$$")

    def run(self, parent: etree.Element, blocks: list[str]) -> None:
        formula = convert(blocks.pop(0).strip().strip("$"), display="block")
        etree.SubElement(parent, "p").text = self.parser.md.htmlStash.store(formula)


class MathML(Extension):
    """TeX formulas converted to MathML when the site is built: browsers need neither scripts nor a network."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(InlineMath(INLINE, md), "mathml", 185)  # after code spans, before escapes
        md.parser.blockprocessors.register(BlockMath(md.parser), "mathml", 90)


def help_text(*words: str) -> str:
    """Output of `quatsphere WORDS --help`, 100 columns wide."""
    environment = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "quatsphere", *words, "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.rstrip()


def command_page(verb: str) -> str:
    """Markdown page with the help of a command and of each of its actions."""
    text = help_text(verb)
    parts = [f"# quatsphere {verb}", f"```text\n{text}\n```"]
    if " ACTION " in text:
        for action in ACTIONS.findall(text):
            parts += [f"## quatsphere {verb} {action}", f"```text\n{help_text(verb, action)}\n```"]
    return "\n\n".join(parts) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the extension for formulas."""
    config.markdown_extensions.append(MathML())  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add `commands/VERB.md` for every command of `quatsphere --help`."""
    verbs = re.findall(r"^ {2}([a-z]+) {2,}\S", help_text(), re.MULTILINE)
    if not verbs:
        raise PluginError("`quatsphere --help` names no command")
    for verb in verbs:
        files.append(File.generated(config, f"commands/{verb}.md", content=command_page(verb)))
    for path in sorted((ROOT / "results").glob("*/by_seed.csv")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"repository/{name}", content=path.read_text(encoding="utf-8")))
    return files


def public_names() -> list[str]:
    """Names in `quatsphere.__all__`, read without importing the package."""
    for node in ast.parse((ROOT / "src" / "quatsphere" / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise PluginError("quatsphere has no __all__")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to stored results at their copies within the site; complete the list of public names."""
    if page.file.src_uri == "api.md":
        missing = [name for name in public_names() if not re.search(rf"^::: [\w.]+\.{name}$", markdown, re.MULTILINE)]
        entries = "\n".join(f"\n::: quatsphere.{name}\n" for name in missing)
        markdown += f"\n\n## Other names\n{entries}" if missing else ""
    return markdown.replace("](../results/", "](repository/results/")
