"""Is somebody else's function right? Each boundary rule holds, is violated (with the smallest window that shows it), or can't be said.

    report = conform(my_gae, "gae", layout="time")
    print(report)

Then it is named what the function does instead, where a known variant, or two of them, gives the same numbers on every window.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlscan.crosscheck.mutants import MUTATIONS, PUBLISHED, Mutant, Mutation, mutated
from rlscan.crosscheck.reading import LAYOUTS, MEANINGS, SHAPES, Facts, Framework, Layout, Raised, Reading, Target, printable
from rlscan.crosscheck.verdicts import HOLDS, UNSAID, VIOLATED, Report, Verdict, Witness
from rlscan.crosscheck.windows import ASKED, FORMULA, MADE_HERE, PARAMETERS, PER_STEP, AtRandom, ByHypothesis, Drawn
from rlscan.spec.bound import bound
from rlscan.spec.calls import check, complete
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.reference import NumPyArrays
from rlscan.spec.variants import VARIANTS

ABOUT_NAN = ("B5", "B6", "B9")

ROWS, STEPS = 16, 5
SIZES = ((3, 0), (0, 3), (1, 1), (3, 1), (2, 37))
FLAG_TYPES = ("bool", "uint8", "int64", "float32")
MOST_STEPS = 4
"""Of the windows among which the smallest is looked for."""
EXAMPLES = 100
"""That are tried for each size."""

MOST_CHOICES = 3
"""Of variants that can't be told apart, that are named."""

# Of other libraries' results, what is called otherwise than by us.
_OUTPUT_NAMES = {
    "advantages": "advantage adv advs gae",
    "pg_advantages": "pg_advantage advantages advantage adv",
    "returns": "return ret rets targets value_targets value_target vs",
    "targets": "target returns value_targets",
    "vs": "v_target v_targets value_targets targets",
}


def rules_of(op: str) -> tuple[str, ...]:
    """The rules, and before them what is asked about the recurrence itself, to go through one by one: `@pytest.mark.parametrize("rule", rules_of("gae"))`."""
    _recurrence(op)
    return tuple(ASKED)


def conform(
    function: Callable,
    op: str,
    *,
    framework: Framework = "numpy",
    layout: Layout | None = None,
    adapter: Callable | Mapping[str, str | None] | None = None,
    constants: Mapping[str, float] | None = None,
    rules: Sequence[str] | None = None,
    name: str | None = None,
) -> Report:
    """What `function` does at every boundary, where it is meant to compute `op`.

    Args:
        function: is called on small windows, hundreds of times.
        op: one of the recurrences: gae, vtrace, ...
        framework: what its arrays are: numpy, torch or jax.
        layout: of arrays: batch is [N, T], time is [T, N], row is [T]; by default the first of these that gives right results.
        adapter: where parameters are not understood by their names: a mapping from what they mean (our names, or those of
            `rlscan.crosscheck.reading.MEANINGS`) to theirs, None where one is to be left alone; or a function that takes our arguments by name and
            returns those of `function`, as a tuple or a mapping.
        constants: gamma or lam, where they are built in and are no parameters; 1 where nothing is said.
        rules: which to look at; by default all.
        name: in the report; by default that of the function.
    """
    recurrence = _recurrence(op)
    if framework not in ("numpy", "torch", "jax"):
        raise ValueError(f"framework is {framework!r}; wanted numpy, torch or jax")
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; wanted one of {', '.join(LAYOUTS)}")
    if rules is not None and (isinstance(rules, str) or not rules):
        raise ValueError(f"rules is {rules!r}; wanted a sequence of some of {', '.join(rules_of(op))}")
    if unknown := [str(rule) for rule in rules or () if rule not in rules_of(op)]:
        raise ValueError(f"rules: {', '.join(unknown)} is not known; wanted some of {', '.join(rules_of(op))}")
    if not isinstance(constants, Mapping | None):
        raise TypeError(f"constants is {constants!r}; wanted a mapping")
    if unknown := [str(constant) for constant in constants or {} if constant not in ("gamma", "lam")]:
        raise ValueError(f"constants: {', '.join(unknown)} is not known; wanted gamma or lam")
    for constant, number in (constants or {}).items():
        if not isinstance(number, int | float) or not 0 <= number <= 1:
            raise ValueError(f"constants: {constant} is {number!r}; wanted a number in [0, 1]")
    target = Target(function, framework, adapter)

    def best(readings: Sequence[Reading]) -> _Examination:
        return max((_Examination(target, recurrence, reading, constants or {}) for reading in readings), key=lambda examination: examination.promise)

    examined = best(readings := target.readings(recurrence, layout))
    by_step = [dataclasses.replace(reading, by_step=True) for reading in readings if reading.tells & {"gamma", "lam"}]
    if examined.promise < 0 and by_step and (other := best(by_step)).promise > 0:
        # it takes no numbers
        examined = other
    return examined.report(printable(name or _name(function)), tuple(dict.fromkeys(rules or rules_of(op))))


def _name(function: Callable) -> str:
    """The same in every run, unlike what objects are shown as."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _recurrence(op: str) -> Recurrence:
    if not isinstance(op, str) or op not in RECURRENCES:
        raise ValueError(f"op is {op!r}; wanted one of {', '.join(RECURRENCES)}")
    return RECURRENCES[op]


@dataclasses.dataclass(frozen=True, eq=False)
class _Definition:
    """What a window's results are by the reference, or by a known variant."""

    original: Recurrence
    mutation: Mutation | None = None

    @functools.cached_property
    def mutant(self) -> Mutant | None:
        return mutated(self.original, self.mutation or Mutation("nothing is wrong", FORMULA))

    def results(self, call: dict[str, Any]) -> dict[str, np.ndarray]:
        assert self.mutant is not None
        return dict(zip(self.original.output_names, self.mutant.results(call), strict=True))

    def limits(self, call: dict[str, Any], dtype: str) -> dict[str, np.ndarray]:
        assert self.mutant is not None
        arguments = {name: x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for name, x in self.mutant.arguments(call).items()}
        checked = check(self.mutant.recurrence, complete(self.mutant.recurrence, arguments), NumPyArrays())
        with np.errstate(all="ignore"):
            return dict(zip(self.original.output_names, map(self.mutant.given_back, bound(checked)), strict=True))


def agree(got: np.ndarray, right: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Within the bound; NaN agrees with NaN. Where the bound's own call promises nothing, another definition still must lie as near as elsewhere."""
    finite = limit[np.isfinite(limit)]
    reach = np.where(np.isfinite(limit), limit, finite.max(initial=0.0))
    with np.errstate(invalid="ignore"):
        return (np.isnan(got) & np.isnan(right)) | (got == right) | (np.abs(got - right) <= reach)


@dataclasses.dataclass(eq=False)
class _Probe:
    """A window of many rows, what is right on it, and what came."""

    drawn: Drawn
    facts: dict[str, Any]
    right: dict[str, np.ndarray]
    bound: Callable[[], dict[str, np.ndarray]]
    got: dict[str, np.ndarray] | None = None
    raised: str | None = None

    @functools.cached_property
    def limits(self) -> dict[str, np.ndarray]:
        return self.bound()

    def differs(self, name: str) -> np.ndarray:
        """By more than rounding. The bound takes most of the time, and is asked for only where something differs at all."""
        assert self.got is not None
        got, right = self.got[name], self.right[name]
        if np.array_equal(got, right, equal_nan=True):
            return np.zeros(got.shape, bool)
        return ~agree(got, right, self.limits[name])

    def faulty(self, outputs: Sequence[str], known: bool = True) -> np.ndarray:
        """Which rows show that the rule is violated; where the formula is not known, by NaN alone."""
        rows = next(iter(self.right.values())).shape[0]
        if self.got is None:
            return np.ones(rows, bool)
        wrong = np.zeros(rows, bool)
        for name in outputs:
            got, right = self.got[name], self.right[name]
            if self.drawn.rule == "B9":
                places = np.isnan(right) & ~np.isnan(got)
            elif self.drawn.rule in ABOUT_NAN:
                places = np.isfinite(right) & ~np.isfinite(got)
                if self.drawn.rule == "B6" and known:
                    places |= np.isfinite(right) & self.differs(name)
            else:
                places = self.differs(name)
            wrong |= places.any(axis=1)
        return wrong


@dataclasses.dataclass(frozen=True)
class _Schedules:
    """What a function takes a number for each step of.

    Attributes:
        taken: of gamma and lambda.
        shared: as `[T]`, the same for all rows, and not as an array that has the shape of the rewards.
        refused: the others that it takes, and what came of an array of them.
    """

    taken: frozenset[str]
    shared: bool
    refused: Mapping[str, str]

    @property
    def note(self) -> str:
        words = {"gamma": "gamma", "lam": "lambda"}
        numbers = " and ".join(words[name] for name in self.refused)
        reason = next(iter(self.refused.values()), "")
        if not self.taken:
            return f"it takes {numbers} as {'numbers' if len(self.refused) > 1 else 'a number'} only ({reason})"
        asked = f"of {' and '.join(words[name] for name in words if name in self.taken)}{', as [T]' if self.shared else ''}"
        return f"{asked}; {numbers} is taken as a number only ({reason})" if numbers else asked if self.shared else ""


class _Examination:
    """A function in one reading."""

    def __init__(self, target: Target, recurrence: Recurrence, reading: Reading, constants: Mapping[str, float]) -> None:
        self.target, self.recurrence, self.reading, self.constants = target, recurrence, reading, constants
        self.tells = reading.tells
        self.reference = self.base = _Definition(recurrence)
        self.base_known = self.constant = True
        self.faults: list[str] = []
        self.items: dict[str, str] = {}
        self.how: dict[str, str] = {}
        self.promise = self._recognise()

    # What it gives

    def _parameters(self) -> Iterator[tuple[float, float]]:
        """Of gamma and lambda; what is no parameter has one value."""
        fixed = [self.constants.get(name, 1.0) for name in ("gamma", "lam")]
        yield from dict.fromkeys((gamma if "gamma" in self.tells else fixed[0], lam if "lam" in self.tells else fixed[1]) for gamma, lam in PARAMETERS)

    def _results(self, facts: Facts, float_dtype: str | None = None, flag_dtype: str | None = None, view: Callable | None = None) -> dict[str, np.ndarray]:
        """All results of the right shape, `[rows, steps]`, by their names; `Raised` where there are none."""
        told = functools.partial(self.reading.told, float_dtype=float_dtype or self.target.float_dtype, flag_dtype=flag_dtype)
        rows, steps = facts["terminated"].shape
        if self.reading.layout != "row":
            arguments = told(facts)
            arguments = {name: view(x) if view and isinstance(x, np.ndarray) else x for name, x in arguments.items()}
            found = self.target.call(arguments)
            wanted = (rows, steps) if self.reading.layout == "batch" else (steps, rows)
            kept = {name: x if self.reading.layout == "batch" else x.T for name, x in found if x.shape == wanted and x.dtype.kind == "f"}
        else:
            each = [self.target.call(told(_row(facts, row))) for row in range(rows)]
            found, wanted = each[0], (steps,)
            kept = {name: np.stack([dict(one)[name] for one in each]) for name, x in found if x.shape == wanted and x.dtype.kind == "f"}
        if not kept:
            shapes = ", ".join(f"{name} is {x.dtype}{list(x.shape)}" for name, x in found) or "nothing"
            raise Raised(f"wrong result: {shapes}; wanted floating numbers of shape {list(wanted)}")
        return kept

    def _outputs(self, facts: Facts, **how: Any) -> dict[str, np.ndarray]:
        """By our names."""
        found = self._results(facts, **how)
        if missing := [item for item in self.items.values() if item not in found]:
            raise Raised(f"wrong result: {missing[0]} is missing or has another shape or type than before")
        return {name: found[item].astype(np.float64) for name, item in self.items.items()}

    def probe(self, drawn: Drawn, facts: dict[str, Any], **how: Any) -> _Probe:
        call = drawn.calls(facts)[0]
        dtype = "float64" if how.get("float_dtype") == "float64" else "float32"
        probe = _Probe(drawn, facts, self.base.results(call), functools.partial(self.base.limits, call, dtype))
        try:
            probe.got = self._outputs(facts, **how)
        except Raised as raised:
            probe.raised = str(raised)
        return probe

    def drawn(self, rule: str) -> Iterator[Drawn]:
        by_step, shared = (self.schedules.taken, self.schedules.shared) if rule == PER_STEP else (frozenset[str](), False)
        for gamma, lam in self._parameters():
            yield Drawn(self.recurrence, self.tells, rule, gamma, lam, by_step, shared)

    @functools.cached_property
    def schedules(self) -> _Schedules:
        """What it takes a number for each step of: the most of gamma and lambda with which it gives results, of the right shape, whatever their numbers."""
        drawn = next(self.drawn(FORMULA))
        facts = drawn.window(AtRandom(0), ROWS, STEPS)
        told = [name for name in ("gamma", "lam") if name in self.tells]
        shapes = ((ROWS, STEPS), (STEPS,)) if self.reading.layout != "row" else ((ROWS, STEPS),)
        refused: dict[str, str] = {}
        for names in dict.fromkeys((tuple(told), *((name,) for name in told))):
            for shape in shapes if names else ():
                came = self._attempt(facts | {name: np.full(shape, facts[name]) for name in names})
                if not isinstance(came, str):
                    return _Schedules(frozenset(names), shape == (STEPS,), {name: words for name, words in refused.items() if name not in names})
                for name in names:
                    refused.setdefault(name, came)
        return _Schedules(frozenset(), False, refused)

    def _probes(self, rule: str) -> list[_Probe]:
        return [self.probe(drawn, drawn.window(AtRandom(number), ROWS, STEPS)) for number, drawn in enumerate(self.drawn(rule))]

    # What its results are

    def _recognise(self) -> float:
        """Takes each of our outputs for the result that equals it where nothing ends, and says how much of the function is understood by that."""
        windows = [(drawn, drawn.window(AtRandom(number), ROWS, STEPS)) for number, drawn in enumerate(self.drawn(FORMULA))]
        try:
            found = [self._results(facts) for _, facts in windows]
        except Raised as raised:
            self.faults.append(f"has no results: {raised}")
            return -1.0
        items = [name for name in found[0] if all(name in each for each in found)]
        calls = [drawn.calls(facts) for drawn, facts in windows]
        limits = [self.reference.limits(call[0], "float32") for call in calls]

        def taken(definition: _Definition) -> dict[str, str]:
            chosen: dict[str, str] = {}
            for name in self.recurrence.output_names:
                for item in items:
                    if item not in chosen.values() and all(
                        self._matches(definition, call, {name: each[item]}, limit) for call, each, limit in zip(calls, found, limits, strict=True)
                    ):
                        chosen[name] = item
                        break
            return chosen

        most = min(len(items), len(self.recurrence.output_names))
        self.items = taken(self.reference)
        self.how = dict.fromkeys(self.items, "by its numbers")
        promise = 3.0 if self.items else 1.0
        for definition in _known(self.recurrence) if len(self.items) < most else ():
            # the variant in whose results most of these are found
            chosen = taken(definition)
            if len(chosen) > len(self.items) and definition.mutation:
                words = f"by the numbers of a known variant: {definition.mutation.name}"
                self.items, self.how = chosen, {name: self.how.get(name, words) for name in chosen}
        promise = max(promise, 2.0 if self.items else 1.0)
        for name in self.recurrence.output_names:
            rest = [item for item in items if item not in self.items.values()]
            if name not in self.items and rest:
                by_name = [item for item in rest if item in (name, *_OUTPUT_NAMES.get(name, "").split())]
                self.items[name], self.how[name] = (by_name[0], "by its name") if by_name else (rest[0], "by its place")
        return promise + len(self.items) / 10

    def _matches(self, definition: _Definition, calls: Sequence[dict[str, Any]], got: Mapping[str, np.ndarray], limits: Mapping[str, np.ndarray]) -> bool:
        """One way of calling the definition gives what came."""
        for call in calls:
            try:
                right = definition.results(call)
            except (TypeError, ValueError, LookupError):
                continue  # this mistake can't be made in this way of calling
            if all(bool(agree(x, right[name], limits[name]).all()) for name, x in got.items()):
                return True
        return False

    def _changes_nothing(self, definition: _Definition, calls: Sequence[dict[str, Any]], got: Mapping[str, Any], limits: Mapping[str, np.ndarray]) -> bool:
        for call in calls:
            with contextlib.suppress(TypeError, ValueError, LookupError):
                faulty, right = definition.results(call), self.reference.results(call)
                if not all(np.array_equal(faulty[name], right[name], equal_nan=True) for name in got):
                    return False
        return True

    # What it does

    def report(self, name: str, rules: Sequence[str]) -> Report:
        reading = self.reading.says
        if self.promise < 0:
            verdicts = tuple(Verdict(rule, UNSAID, "it has no results") for rule in rules)
            layout, diagnosis = self.reading.layout, f"{name} gives no results to judge."
            return Report(name, self.recurrence.name, self.target.framework, layout, reading, {}, verdicts, tuple(self.faults), (), diagnosis)
        first = next(self.drawn(FORMULA)).window(AtRandom(0), ROWS, STEPS)
        before = self._attempt(first)
        self.constant = _same_results(before, self._attempt(first))
        formula = self._probes(FORMULA)
        verdicts = {FORMULA: self._judged(FORMULA, formula)}
        if verdicts[FORMULA].status == VIOLATED:
            matching = self._search(formula, _known(self.recurrence))
            self.base_known = bool(matching)
            self.base = matching[0] if matching else self.reference
        made = {FORMULA: formula}
        for rule in (rule for rule in MADE_HERE if rule in rules):
            drawn = next(self.drawn(rule))
            if reason := drawn.cannot():
                verdicts[rule] = Verdict(rule, UNSAID, reason)
            elif not self.base_known and rule not in ABOUT_NAN:
                verdicts[rule] = Verdict(rule, UNSAID, "it differs already where nothing ends, in a way that is not known")
            elif rule == PER_STEP and not self.schedules.taken:
                verdicts[rule] = Verdict(rule, UNSAID, self.schedules.note)
            else:
                made[rule] = self._probes(rule)
                verdicts[rule] = self._judged(rule, made[rule])
        typed: list[_Probe] = []
        if "B10" in rules:
            verdicts["B10"] = self._sizes()
        if "B11" in rules:
            verdicts["B11"], typed = self._types()
        verdicts["B12"] = Verdict("B12", UNSAID, "it takes 2^31 elements to see, and is not tried")
        if not self.constant or not _same_results(before, self._attempt(first)):
            self.faults.append("gives other results when it is called again with the same arguments")
        if self.target.changes:
            self.faults.append(f"changes its arguments: {', '.join(sorted(self.target.changes))}")
        behaves, diagnosis = self._diagnosis(name, made, verdicts, typed)
        outputs = {output: f"{item}, {self.how[output]}" for output, item in self.items.items()}
        chosen = tuple(verdicts[rule] for rule in rules)
        layout = f"{self.reading.layout}, {SHAPES[self.reading.layout]}"
        return Report(name, self.recurrence.name, self.target.framework, layout, reading, outputs, chosen, tuple(self.faults), behaves, diagnosis)

    def _attempt(self, facts: Facts) -> dict[str, np.ndarray] | str:
        try:
            return self._outputs(facts)
        except Raised as raised:
            return str(raised)

    def _judged(self, rule: str, probes: Sequence[_Probe]) -> Verdict:
        outputs = tuple(self.items)
        bad = [probe for probe in probes if probe.faulty(outputs, self.base_known).any()]
        if not bad:
            return Verdict(rule, HOLDS, self.schedules.note if rule == PER_STEP else "")
        # what it does once is no sign of what it does
        self.constant &= all(_same_results(probe.raised or "" if probe.got is None else probe.got, self._attempt(probe.facts)) for probe in bad)
        witness = self._smallest(rule) or self._row_of(bad[0], "one of many windows, and not the smallest")
        return Verdict(rule, VIOLATED, ASKED[rule].statement, witness)

    def _smallest(self, rule: str) -> Witness | None:
        """By hypothesis, which makes the window as small as it can."""
        if not self.constant:
            return None
        try:
            import hypothesis
        except ImportError:
            return None
        from hypothesis import strategies
        from hypothesis.errors import Flaky, NoSuchExample

        # JAX compiles for each size
        sizes = [*range(1, MOST_STEPS + 1)] if self.target.framework != "jax" else [1, 2, MOST_STEPS]
        checks: Any = list(hypothesis.HealthCheck)
        settings = hypothesis.settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=checks)

        @strategies.composite
        def windows(draw: Callable[[Any], Any], rows: int, steps: int) -> tuple[Drawn, dict[str, Any]]:
            drawn = draw(strategies.sampled_from(list(self.drawn(rule))))
            return drawn, drawn.window(ByHypothesis(draw, strategies), rows, steps)

        def shows(window: tuple[Drawn, dict[str, Any]]) -> bool:
            return bool(self.probe(*window).faulty(tuple(self.items), self.base_known).any())

        for rows, steps in itertools.product((1, 2) if self.reading.layout != "row" else (1,), sizes):
            try:
                note = "it shows only beside another row" if rows > 1 else None
                return self._row_of(self.probe(*hypothesis.find(windows(rows, steps), shows, settings=settings)), note)
            except (NoSuchExample, Flaky):
                continue
        return None

    def _row_of(self, probe: _Probe, note: str | None = None) -> Witness:
        """The first row that is wrong."""
        faulty = probe.faulty(tuple(self.items), self.base_known)
        row = int(np.argmax(faulty)) if faulty.size else 0
        names = [name for name in self.recurrence.argument_names if name in probe.facts and name in self.tells]

        def one(x: Any, shared: bool = False) -> Any:
            if not isinstance(x, np.ndarray):
                return x
            return x.tolist() if shared else x[row].tolist() if x.ndim and row < x.shape[0] else []

        shown = {name: one(probe.right[name]) for name in self.items}
        got = {} if probe.got is None else {name: one(probe.got[name]) for name in self.items}
        of_all_rows = probe.drawn.by_step if probe.drawn.shared else ()
        return Witness({name: one(probe.facts[name], name in of_all_rows) for name in names}, got, shown, probe.raised, note)

    def _sizes(self) -> Verdict:
        """B10."""
        drawn = next(self.drawn(FORMULA))
        for rows, steps in SIZES:
            if self.reading.layout == "row" and rows != 1:
                rows = 1
            if rows and (reason := self._differs(drawn, rows, steps)):
                return Verdict("B10", VIOLATED, ASKED["B10"].statement, dataclasses.replace(reason, note=f"{rows} rows of {steps} steps"))
            if not rows and (reason := self._differs(drawn, rows, steps)):
                return Verdict("B10", VIOLATED, ASKED["B10"].statement, dataclasses.replace(reason, note="no rows"))
        if self.target.framework != "jax" and self.reading.layout != "row":
            for words, view in (("every other element in memory", _every_other), ("the same row again and again, without a copy", _repeated)):
                facts = drawn.window(AtRandom(1), ROWS, STEPS)
                facts = {name: np.repeat(x[:1], ROWS, axis=0) if isinstance(x, np.ndarray) else x for name, x in facts.items()}
                axis = 1 if self.reading.layout == "time" else 0
                probe = self.probe(drawn, facts, view=functools.partial(view, axis=axis))
                if probe.raised or (self.base_known and probe.faulty(tuple(self.items)).any()):
                    return Verdict("B10", VIOLATED, ASKED["B10"].statement, self._row_of(probe, f"arrays that have {words}"))
        return Verdict("B10", HOLDS)

    def _differs(self, drawn: Drawn, rows: int, steps: int) -> Witness | None:
        probe = self.probe(drawn, drawn.window(AtRandom(rows), rows, steps))
        return self._row_of(probe) if probe.raised or (self.base_known and probe.faulty(tuple(self.items)).any()) else None

    def _types(self) -> tuple[Verdict, list[_Probe]]:
        """B11, and all its windows, by which what does not show in one type is told from what does."""
        drawn = next(self.drawn(FORMULA))
        plain = drawn.window(AtRandom(2), ROWS, STEPS)
        if "log_rhos" in plain:
            plain["log_rhos"] = np.zeros_like(plain["log_rhos"])  # no exponential is exact

        def with_digits(least: float) -> dict[str, Any]:
            """Numbers that have so many digits that their sums do not fit into a narrower type."""
            return {name: x * (1 + least) if isinstance(x, np.ndarray) and x.dtype.kind == "f" and name != "factor" else x for name, x in plain.items()}

        few, many = with_digits(2.0**-7), with_digits(2.0**-30)
        flags = list(FLAG_TYPES) if self.reading_has_flags else []
        cases = [("float64", None, many), ("float32", None, few), ("float16", None, few), *(("float32", flag, plain) for flag in flags)]
        probes = [self.probe(drawn, facts, float_dtype=float_dtype, flag_dtype=flag_dtype) for float_dtype, flag_dtype, facts in cases]
        for (float_dtype, flag_dtype, _), probe in zip(cases, probes, strict=True):
            if probe.raised or (self.base_known and probe.faulty(tuple(self.items)).any()):
                words = f"flags are {flag_dtype}" if flag_dtype else f"arrays are {float_dtype}"
                return Verdict("B11", VIOLATED, ASKED["B11"].statement, self._row_of(probe, words)), probes
        return Verdict("B11", HOLDS), probes

    @property
    def reading_has_flags(self) -> bool:
        return any("flags" in MEANINGS[meaning].kind for _, meaning in self.reading.parameters)

    # What it does instead

    def _search(self, probes: Sequence[_Probe], definitions: Sequence[_Definition], pairs: bool = True) -> list[_Definition]:
        """Those of the known variants that give what came on all the windows, or else the first two of them that do so together."""
        outputs = tuple(self.items)
        told = [probe for probe in probes if probe.got is not None]
        # the first window decides for most
        told.sort(key=lambda probe: not probe.faulty(outputs, self.base_known).any())
        calls = [(probe.drawn.calls(probe.facts), probe.got or {}, probe.limits) for probe in told]
        if not calls:
            return []

        def gives(definition: _Definition) -> bool:
            return definition.mutant is not None and all(self._matches(definition, *each) for each in calls)

        if single := [definition for definition in definitions if gives(definition)]:
            return single
        # what changes nothing on these windows explains nothing beside another either
        some = [definition for definition in definitions if pairs and not all(self._changes_nothing(definition, *each) for each in calls)]
        mutations = [definition.mutation for definition in some if definition.mutation]
        for one, other in itertools.combinations(mutations, 2):
            both = one.and_also(other)
            if both is None:
                continue
            pair = _Definition(self.recurrence, both)
            if gives(pair):
                return [pair]
        return []

    def _diagnosis(
        self, name: str, made: Mapping[str, Sequence[_Probe]], verdicts: Mapping[str, Verdict], typed: Sequence[_Probe]
    ) -> tuple[tuple[tuple[str, ...], ...], str]:
        numbers = [probe for rule, probes in made.items() if rule not in ABOUT_NAN for probe in probes]
        spoilt = [probe for rule, probes in made.items() if rule in ABOUT_NAN for probe in probes]
        violated = [rule for rule in made if verdicts[rule].status == VIOLATED]
        # where it raises, there are no numbers by which to know it
        wrong = [rule for rule in violated if any(probe.got is not None and probe.faulty(tuple(self.items), self.base_known).any() for probe in made[rule])]
        raised = {rule: next((probe.raised for probe in made[rule] if probe.raised), None) for rule in violated}
        of_nan = [rule for rule in wrong if rule in ABOUT_NAN]
        # sizes and types, whose witnesses say which
        apart = {rule: verdict.witness.note for rule, verdict in verdicts.items() if rule in ("B10", "B11") and verdict.witness}
        if not self.constant:
            return (), f"{name} gives other results each time, so that no more can be said."
        if not violated and not apart:
            what = "does what rlscan does, in all that its parameters can say" if not self.faults else "gives right numbers"
            return (), f"{name} {what}."
        known, found, unknown = _known(self.recurrence), [self.reference], list[str]()
        if len(of_nan) < len(wrong):
            found = self._search(numbers, known)
            others = [rule for rule in wrong if rule not in (*ABOUT_NAN, PER_STEP)]
            if not found and PER_STEP in wrong:
                # what it does where there is one gamma and lambda is worth knowing all the same
                numbers = [probe for probe in numbers if probe.drawn.rule != PER_STEP]
                found = self._search(numbers, known) if others else [self.reference]
                unknown += ["handles numbers for each step as no known variant does: per-step violated"] * bool(found)
            if not found:
                return (), f"{name} does what no known variant does, nor any two of them: {', '.join([*violated, *apart])} violated{self._assumed()}."
        elif "B11" in apart:
            rounding = [definition for definition in known if definition.mutation and definition.mutation.rule == "B11"]
            if alike := self._search([*numbers, *typed], rounding, pairs=False):
                found = alike
                del apart["B11"]
        if of_nan:
            spoiling = [definition for definition in known if definition.mutation and definition.mutation.rule in ABOUT_NAN]
            # of what explains it alike, first what is about a rule that is violated
            spoiling.sort(key=lambda definition: definition.mutation is not None and definition.mutation.rule not in of_nan)
            start = found[0].mutation
            joined = [start, *(start.and_also(each.mutation) for each in spoiling if each.mutation)] if start else []
            more = [_Definition(self.recurrence, both) for both in joined if both is not None] if start else spoiling
            if alike := self._search([*numbers, *spoilt], more, pairs=start is None):
                found = alike[:1]
            else:
                unknown.append(f"handles NaN as no known variant does: {', '.join(of_nan)} violated")
        for words in dict.fromkeys(filter(None, raised.values())):
            unknown.append(f"has no results on windows of {', '.join(rule for rule in raised if raised[rule] == words)}: {words}")
        unknown += [f"violates {rule} ({note})" for rule, note in apart.items()]
        behaves = tuple(tuple(each.mutation.name.split("; ")) for each in found[:MOST_CHOICES] if each.mutation)
        right = "gives right numbers" + (" where it gives any" if any(raised.values()) else ", wherever all are finite" if of_nan else "")
        does = [", or ".join("; ".join(map(_phrase, names)) for names in behaves) or right, *unknown]
        return behaves, f"{name} {'; '.join(does)}."

    def _assumed(self) -> str:
        """What was taken for granted, for which it may look wrong."""
        assumed = [name for name in ("gamma", "lam") if name in self.recurrence.argument_names and name not in (*self.tells, *self.constants)]
        return f"; no parameter says {' or '.join(assumed)}, which was taken to be 1: where it is built in, say so by constants" if assumed else ""


@functools.cache
def _known(recurrence: Recurrence) -> tuple[_Definition, ...]:
    """The variants that can be made of it, in the order of the table."""
    mutations = {mutation.name: mutation for mutation in (*MUTATIONS, *PUBLISHED)}
    made = (_Definition(recurrence, mutations[name]) for name in VARIANTS)
    return tuple(definition for definition in made if definition.mutant is not None)


def _phrase(name: str) -> str:
    variant = VARIANTS[name]
    *others, last = variant.peers or ("",)
    return f"{variant.says}, as {', '.join(others)}{' and ' if others else ''}{last} do{'' if others else 'es'}" if last else variant.says


def _same_results(one: dict[str, np.ndarray] | str, other: dict[str, np.ndarray] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def _row(facts: Facts, row: int) -> dict[str, Any]:
    return {name: x[row : row + 1] if isinstance(x, np.ndarray) and x.ndim else x for name, x in facts.items()}


def _every_other(array: np.ndarray, axis: int) -> np.ndarray:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _repeated(array: np.ndarray, axis: int) -> np.ndarray:
    axis = min(axis, array.ndim - 1)
    return np.broadcast_to(array[(slice(None),) * axis + (slice(0, 1),)], array.shape)
