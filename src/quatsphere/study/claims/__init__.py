"""The claims ledger: every quantitative statement of the paper as data, with the rule that decides it."""

from quatsphere.study.claims.rules import Claim, decide
from quatsphere.study.claims.static import STATIC
from quatsphere.study.claims.trained import TRAINED

CLAIMS: tuple[Claim, ...] = (*STATIC, *TRAINED)

__all__ = ["CLAIMS", "STATIC", "TRAINED", "Claim", "decide"]
