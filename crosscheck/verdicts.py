"""What is found about somebody else's function: for each rule a verdict, for each violated one the window that shows it, and what the function does instead."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlscan.crosscheck.windows import ASKED

Status = Literal["holds", "violated", "can't be said"]
HOLDS: Status = "holds"
VIOLATED: Status = "violated"
UNSAID: Status = "can't be said"

KIND = "conformance"


@dataclasses.dataclass(frozen=True)
class Witness:
    """A window on which a rule is violated, with the smallest numbers that were found.

    Attributes:
        arguments: by our names: a number for each step, one for the row, or a number.
        got, right: for each output a number for each step; nothing came where it raised.
        raised: what it raised.
        note: what is special about the window, where it is not its numbers.
    """

    arguments: dict[str, Any]
    got: dict[str, Any]
    right: dict[str, Any]
    raised: str | None = None
    note: str | None = None

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether numbers are written with all their digits: where with six of them all that came is as it should be."""
        pairs = [pair for name, came in self.got.items() for pair in zip(came, self.right[name], strict=True)]
        return bool(pairs) and all(_written(came, False) == _written(right, False) for came, right in pairs)

    def written(self, value: Any) -> str:
        return _written(value, self.is_exact)

    def lines(self) -> list[str]:
        width = max(map(len, (*self.arguments, *self.right, "note")))
        lines = [f"{name:{width}}  {self.written(value)}" for name, value in self.arguments.items()]
        for name, right in self.right.items():
            came = f"came {self.written(self.got[name])}, " if name in self.got else ""
            lines.append(f"{name:{width}}  {came}right {self.written(right)}")
        lines += [f"{'raised':{width}}  {self.raised}"] if self.raised else []
        return lines + ([f"{'note':{width}}  {self.note}"] if self.note else [])


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known about one rule, or about the recurrence itself."""

    rule: str
    status: Status
    note: str = ""
    witness: Witness | None = None

    @property
    def title(self) -> str:
        return ASKED[self.rule].title


@dataclasses.dataclass(frozen=True)
class Report:
    """What was found about one function.

    Attributes:
        name: of the function.
        reading: what each of its parameters was taken for.
        outputs: which of its results each of our outputs was taken from.
        faults: that it changes its arguments, or has no results to judge, or other ones each time.
        behaves: the names of the known variants that together give the same numbers; several such choices where they can't be told apart.
        diagnosis: a sentence.
    """

    name: str
    op: str
    framework: str
    layout: str
    reading: dict[str, str]
    outputs: dict[str, str]
    verdicts: tuple[Verdict, ...]
    faults: tuple[str, ...] = ()
    behaves: tuple[tuple[str, ...], ...] = ()
    diagnosis: str = ""

    def __getitem__(self, rule: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.rule == rule:
                return verdict
        raise KeyError(f"{rule} was not looked at; wanted one of {', '.join(verdict.rule for verdict in self.verdicts)}")

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    @property
    def violated(self) -> tuple[str, ...]:
        return tuple(verdict.rule for verdict in self.verdicts if verdict.status == VIOLATED)

    @property
    def conforms(self) -> bool:
        """No rule is violated, there is no fault, and something was found out."""
        return not self.violated and not self.faults and any(verdict.status == HOLDS for verdict in self.verdicts)

    def require(self, rule: str) -> None:
        """An `AssertionError` with the window that shows it, where the rule is violated; or with a fault of the function."""
        __tracebackhide__ = True  # by pytest, for the message says it all
        verdict = self[rule]
        if self.faults:
            raise AssertionError(f"{self.name}: {'; '.join(self.faults)}")
        if verdict.status == VIOLATED:
            window = "\n".join(verdict.witness.lines()) if verdict.witness else ""
            raise AssertionError(f"{self.name} violates {rule}, {verdict.title}: {verdict.note}\n{window}\n{self.diagnosis}")

    def as_json(self) -> dict[str, Any]:
        return {"conforms": self.conforms, **_plain(dataclasses.asdict(self))}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        fields = {name: value for name, value in data.items() if name != "conforms"}
        verdicts = []
        for verdict in fields["verdicts"]:
            witness = verdict["witness"]
            verdicts.append(Verdict(**verdict | {"witness": Witness(**{name: _numbers(value) for name, value in witness.items()}) if witness else None}))
        behaves = tuple(tuple(names) for names in fields["behaves"])
        return Report(**fields | {"verdicts": tuple(verdicts), "faults": tuple(fields["faults"]), "behaves": behaves})

    def __str__(self) -> str:
        from rlscan.crosscheck.conform_page import text

        return text(self)


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    return {"kind": KIND, "reports": [report.as_json() for report in reports]}


def _written(value: Any, is_exact: bool) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_written(each, is_exact) for each in value)}]"
    if isinstance(value, bool | str):
        return str(value)
    return repr(float(value)).removesuffix(".0") if is_exact else f"{value:.6g}"


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
