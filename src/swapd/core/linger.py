"""How long a model is held for its agent's next turn (anticipatory scheduling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from swapd.core.spec import Linger

GAPS_KEPT: Final = 12
LONGEST_HOLD_S: Final = 8.0
MARGIN: Final = 1.2
"""A gap a hair longer than the last ones must still be met."""


def hold_s(linger: Linger, gaps_s: Sequence[float], bring_back_s: float) -> float:
    """Seconds to hold an idle model against conflicting requests.

    With C = ``bring_back_s`` (load plus re-reading), of the gaps g <= min(C, 8 s) the
    one that minimises the mean over all gaps x of (x if x <= g else g + C), or 0 if
    none beats C; times 1.2, at most min(C, 8 s). With fewer than 3 gaps: min(C, 8 s).
    Source: simulated agent traces, five seeds of three kinds (docs/why/scheduling.md).
    """
    if linger != "auto":
        return linger
    longest = min(bring_back_s, LONGEST_HOLD_S)
    if len(gaps_s) < 3:
        return longest
    best, best_cost = 0.0, bring_back_s
    for hold in gaps_s:
        if hold <= longest:
            cost = sum(gap if gap <= hold else hold + bring_back_s for gap in gaps_s) / len(gaps_s)
            if cost < best_cost:
                best, best_cost = hold, cost
    return min(best * MARGIN, longest)
