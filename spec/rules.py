"""The boundary rules, B1 to B12: what every recurrence owes at the edges of an episode and of a window.

Tests, reports and pages refer to them by id.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Rule:
    id: str
    title: str
    statement: str


RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule("B1", "termination", "Where terminated, the successor's value is not read and nothing flows from t+1 to t."),
        Rule("B2", "truncation", "Where truncated, the successor's value is read and nothing flows from t+1 to t."),
        Rule("B3", "both", "Where both flags are set, termination wins."),
        Rule("B4", "window end", "The bootstrap enters once: through N_(T-1) in the TD error, or as G_T; what an advantage carries past the window is 0."),
        Rule("B5", "no contamination", "NaN or infinity on the far side of a boundary, or in a place that is not read, never reaches this side."),
        Rule("B6", "zero discount", "A discount of 0 is a hard cut: nothing behind it is read, and 0 * inf is never formed."),
        Rule("B7", "forward operations", "The cut is on the edge out of the ending step: the reset shows at t+1; with starts, at t."),
        Rule(
            "B8",
            "valid",
            "Results at valid steps equal those of the row with its invalid steps removed; outputs at invalid steps are 0, whatever is stored there.",
        ),
        Rule("B9", "NaN inside", "NaN inside an episode reaches every step that depends on it, at every length; clips let NaN through."),
        Rule("B10", "sizes", "T = 0, no rows, T = 1, any T, non-contiguous and broadcast inputs give the same values as the loop."),
        Rule("B11", "numbers", "Half-precision and float32 inputs are computed in float32, float64 in float64; flags may have any type, nonzero is True."),
        Rule("B12", "scale", "More than 2^31 elements work: offsets have 64 bits."),
    )
}
