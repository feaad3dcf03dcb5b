"""The claims ledger: every quantitative statement of the paper as data, and what decides it."""

from quatsphere.study.claims.claim import Claim, Finding
from quatsphere.study.claims.decide import decide
from quatsphere.study.claims.ledger_static import STATIC
from quatsphere.study.claims.ledger_trained import TRAINED

CLAIMS: tuple[Claim, ...] = (*STATIC, *TRAINED)

__all__ = ["CLAIMS", "STATIC", "TRAINED", "Claim", "Finding", "decide"]
