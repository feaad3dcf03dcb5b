"""For a while, something else in place of an attribute of one object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def shadow(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Within the block `owner.name` is `change(owner.name)`; its class and all other objects keep theirs."""
    own = vars(owner)
    before = {name: own[name]} if name in own else {}
    own[name] = change(getattr(owner, name))
    try:
        yield
    finally:
        del own[name]
        own.update(before)
