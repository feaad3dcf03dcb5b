"""Write docs/errors.md: every exit code, and every message of an error, as the source states them.

    python docs/errors.py

A message is read from the calls that build an error; `{...}` marks a part that is filled in.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "quatsphere"
PAGE = ROOT / "docs" / "errors.md"
SIGNALS = {
    "130": "SIGINT (Ctrl-C): the run saved and stopped; twice: it stopped at once",
    "141": "the reader of stdout is gone (SIGPIPE)",
    "143": "SIGTERM: the run saved and stopped",
}
"""Exit codes of signals, 128 + number."""
STOPPED = "Exit codes 130 and 143"
"""Section of the messages of runs that a signal stopped."""
HEAD = """# Errors and exit codes

Every failure is one line on stderr, `quatsphere: error: what (where); what to do`, and an exit code. `--debug` shows
the traceback instead. Nothing is written before the input is checked. `python docs/errors.py` writes this page from the
source; `{...}` marks what is filled in.

"""


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """Text of the page."""
    classes = error_classes()
    codes = {name: code for name, (code, _) in classes.items()}
    lines = [HEAD + "| code | meaning |", "|---|---|", "| 0 | success |"]
    lines += [f"| {code} | {text} |" for code, text in code_meanings()]
    found: dict[str, dict[str, set[str]]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        for name, message in messages(ast.parse(file.read_text(encoding="utf-8")), codes):
            title = STOPPED if message.startswith("stopped") else f"Exit code {codes[name]}"
            found.setdefault(title, {}).setdefault(message, set()).add(place)
    for title, texts in sorted(found.items()):
        lines += ["", f"## {title}", "", "| message | in |", "|---|---|"]
        lines += [f"| `` {text} `` | {', '.join(sorted(places))} |" for text, places in sorted(texts.items())]
    return "\n".join(lines) + "\n"


def error_classes() -> dict[str, tuple[int, str]]:
    """Name -> (exit code, first line of the docstring) of every error class, also those outside `errors.py`."""
    from quatsphere import errors

    known = {
        name: (value.exit_code, (value.__doc__ or "").splitlines()[0])
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.QuatsphereError)
    }
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            bases = [base.id for base in getattr(node, "bases", []) if isinstance(base, ast.Name)]
            parent = next((base for base in bases if base in known), None)
            if isinstance(node, ast.ClassDef) and parent is not None and node.name not in known:
                known[node.name] = (known[parent][0], "")
    return known


def code_meanings() -> Iterator[tuple[str, str]]:
    """(exit code, meaning), in order."""
    own = {code: text for code, text in error_classes().values() if text}
    own[1] = "A bug of quatsphere; please report it with `--debug`."
    yield from ((str(code), text.rstrip(".")) for code, text in sorted(own.items()))
    yield from SIGNALS.items()


def messages(tree: ast.Module, known: dict[str, int]) -> Iterator[tuple[str, str]]:
    """(class, message) of every call in a file that builds an error."""
    for scope in ast.walk(tree):
        if isinstance(scope, ast.ClassDef) and scope.name in known:
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
                if ast.unparse(call.func) == "super().__init__" and call.args:
                    yield from ((scope.name, text) for text in template(call.args[0], {}))
        if isinstance(scope, ast.FunctionDef):
            named: dict[str, list[ast.expr]] = {}
            for node in ast.walk(scope):
                for target in node.targets if isinstance(node, ast.Assign) else ():
                    if isinstance(target, ast.Name):
                        named.setdefault(target.id, []).append(node.value)
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Name) and call.func.id in known and call.args:
                    yield from ((call.func.id, text) for text in template(call.args[0], named))


def template(node: ast.expr, named: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the messages that an expression builds, with `{name}` for parts that are filled in."""
    if isinstance(node, ast.Name) and node.id in named:
        for value in named[node.id]:
            yield from template(value, {})
    elif isinstance(node, ast.IfExp):
        yield from template(node.body, named)
        yield from template(node.orelse, named)
    else:
        text = " ".join(_text(node).split()).replace("|", "\\|")
        if re.search("[a-z]{3}", re.sub(r"\{[^}]*\}", "", text)):
            yield text


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.FormattedValue):
        node = node.value
    plain = re.sub(r"(['\"]).*?\1|\b(?:str|len|get|for|in|if|else|not|or|and|is|None)\b", "", ast.unparse(node))
    words = re.findall("[A-Za-z_]+", plain)
    return "{" + (words[-1] if words else "...") + "}"


if __name__ == "__main__":
    sys.exit(main())
