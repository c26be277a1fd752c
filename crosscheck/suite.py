"""A run of the project's own tests, as data and as a page: `pytest --record FILE.json`."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlscan.crosscheck.report import markdown

KIND = "suite"

OUTCOMES = ("passed", "failed", "skipped")


@dataclasses.dataclass
class Suite:
    """What came of the tests.

    Attributes:
        header: where and with what they ran, and whether they came to an end.
        files: for each file, how many tests had each outcome, and the seconds that they took in all.
        reasons: for which tests were skipped, and how many.
        failures: the tests that failed.
    """

    header: dict[str, Any]
    files: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, test: str, phase: str, outcome: str, seconds: float, reason: str = "") -> None:
        """One phase of a test, which is named `file::test`: before it and after it, what is not as it should be counts for the test."""
        row = self.files.setdefault(test.partition("::")[0], dict.fromkeys((*OUTCOMES, "seconds"), 0))
        row["seconds"] = round(row["seconds"] + seconds, 2)
        if (phase != "call" and outcome == "passed") or test in self.failures:
            return
        if phase == "teardown":
            row["passed"] -= 1
        row[outcome] += 1
        if outcome == "failed":
            self.failures.append(test)
        if outcome == "skipped":
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def as_json(self) -> dict[str, Any]:
        return {"kind": KIND, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Suite:
        return Suite(data["header"], data["files"], data["reasons"], data["failures"])


def page(suite: Suite) -> str:
    """A Markdown page."""
    made = suite.header
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    total = {outcome: sum(int(row[outcome]) for row in suite.files.values()) for outcome in OUTCOMES}
    lines = [
        f"# The tests on {made['device']}",
        "",
        f"{made['date']}; {versions}. `{made['command']}`",
        "",
        f"Kernels were {made['kernels']}. {total['passed']} tests passed, {total['failed']} failed, {total['skipped']} were skipped.",
        "Seconds are those of all processes together." if made.get("ended", True) else "The run was cut short, and other tests had not ended.",
        "",
        markdown(
            ("file", *OUTCOMES, "s"), [(file, *(row[outcome] for outcome in OUTCOMES), f"{row['seconds']:.0f}") for file, row in sorted(suite.files.items())]
        ),
    ]
    if suite.failures:
        lines += ["", "## Failed", "", *(f"- `{test}`" for test in sorted(suite.failures))]
    if suite.reasons:
        reasons = sorted(suite.reasons.items(), key=lambda item: (-item[1], item[0]))
        lines += ["", "## Why tests were skipped", "", markdown(("tests", "reason"), [(count, reason) for reason, count in reasons])]
    return "\n".join(lines) + "\n"
