"""All claims against all finished cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quatsphere.study.claims.claim import Claim
from quatsphere.study.claims.evidence import Evidence


def decide(claims: Iterable[Claim], records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One plain object per claim: id, kind, verdict, n, ours, paper, interval, and why."""
    evidence = Evidence(records)
    return [claim.to_json(claim.decide(evidence)) for claim in claims]
