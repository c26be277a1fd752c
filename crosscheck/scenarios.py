"""What is put before the backends: for any declared recurrence, problems by the dozen.

A scenario is random data, one boundary rule, the known cases, or rollouts of real environments. Where a rule says that
something is not read, NaN and infinity are there; the oracle gets the same arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlscan.crosscheck import cases, rollouts
from rlscan.crosscheck.draw import DTYPES, FLAG_DTYPES, FORMS, Variant, defaults, draw, held, variants
from rlscan.crosscheck.unread import Window, unread
from rlscan.spec.bound import bound
from rlscan.spec.calls import Call, check
from rlscan.spec.recurrences import Recurrence
from rlscan.spec.reference import NumPyArrays, loop
from rlscan.spec.rules import RULES

LAYOUTS = ("batch-major", "time-major", "middle")

POISON = (np.nan, np.inf, -np.inf)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One call.

    Attributes:
        scenario: its name.
        label: what sets it apart from the others of the scenario.
        recurrence: its declaration.
        arguments: NumPy arrays, numbers and options.
        dtype: of the floating arrays; bfloat16 is held in float32.
        clean: the same call without what is planted in places that matter to no result.
        untouched: where the results are those of the clean call, time first; everywhere if None.
        known: says what is wrong with the results, by other means than the oracle.
        copies: the only row is to be given so many times, and every row of the results must be the same. (On a GPU only.)
    """

    scenario: str
    label: str
    recurrence: Recurrence
    arguments: dict[str, Any]
    dtype: str = "float32"
    clean: dict[str, Any] | None = None
    untouched: np.ndarray | None = None
    known: Callable[[tuple], list[str]] | None = None
    copies: int = 1

    def __str__(self) -> str:
        return f"{self.recurrence.name}, {self.scenario}: {self.label}"

    @functools.cached_property
    def call(self) -> Call:
        return check(self.recurrence, self.arguments, NumPyArrays())

    @functools.cached_property
    def oracle(self) -> tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):
            return loop(self.call)

    @functools.cached_property
    def limits(self) -> tuple[np.ndarray, ...]:
        return bound(self.call)


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much of everything.

    Attributes:
        full: all that there is instead of a selection.
        seed: of all random numbers.
    """

    full: bool = False
    seed: int = 0

    # Odd, and the same almost everywhere: JAX compiles anew for every shape.
    rows, steps = 6, 37

    def variants(self, recurrence: Recurrence, *forms: Any) -> tuple[Variant, ...]:
        every = variants(recurrence, forms or ("number",))
        return every if self.full else covering(every)


def covering(every: Iterable[Variant]) -> tuple[Variant, ...]:
    """A few of the variants in which every two choices that ever meet do meet."""
    every = list(every)
    names = sorted({name for variant in every for name in (*variant.given, *map(str, variant.options))})

    def pairs(variant: Variant) -> set[Any]:
        choices = [(name, name in variant.given or name in map(str, variant.options)) for name in names]
        return set(itertools.combinations([*choices, ("form", variant.form)], 2))

    missing, chosen = set().union(*map(pairs, every)), []
    while missing:
        best = max(every, key=lambda variant: len(pairs(variant) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return tuple(chosen)


def shape_of(layout: str, rows: int, steps: int) -> tuple[tuple[int, ...], int]:
    """The shape of the flags, and the time axis in it."""
    return {"batch-major": ((rows, steps), -1), "time-major": ((steps, rows), 0), "middle": ((2, steps, rows // 2), 1)}[layout]


def random_data(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """Every variant, layout and dtype."""
    sizes = (extent.steps, 300) if not extent.full else (1, 2, extent.steps, 128, 129, 300, 1025)
    every = extent.variants(recurrence)
    for number, variant in enumerate(every):
        yield drawn("random", recurrence, variant, extent, number)
    for number, (layout, dtype, steps) in enumerate(itertools.product(LAYOUTS, DTYPES, sizes)):
        # 5 has no divisor in common with the numbers of dtypes and sizes, so that a quick run meets each of them.
        chosen = every if extent.full else [every[number % len(every)]] if number % 5 == 0 else []
        for variant in chosen:
            formed = dataclasses.replace(variant, form=FORMS[number % len(FORMS)])
            yield drawn("random", recurrence, formed, extent, number, layout, dtype, steps, actions=(1, 3, 18, 300)[number % 4])
    if any(argument.shape == "inputs" for argument in recurrence.arguments):
        for layout in LAYOUTS if extent.full else LAYOUTS[:1]:
            yield drawn("random", recurrence, every[-1], extent, 0, layout, features=(3,), note="features")


def planted(rule: str, recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """NaN and infinity wherever the rule lets nothing be read."""
    for number, (variant, layout) in enumerate(_few(recurrence, extent, "per step")):
        problem = drawn(rule, recurrence, variant, extent, number, layout)
        _raise_flags(problem, rule)
        arguments, planted_any = hidden(rule, recurrence, problem.arguments)
        if planted_any or (rule == "B7" and _raised(rule, problem)):
            yield dataclasses.replace(problem, arguments=arguments, clean=problem.arguments)


def hidden(rule: str, recurrence: Recurrence, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The arguments with NaN and infinity wherever the rule lets nothing be read, and whether that is anywhere."""
    arguments = _copied(arguments)
    window = Window(recurrence, arguments)
    masks = unread(recurrence, arguments, rule)
    for name, mask in masks.items():
        _poison(arguments[name] if window.kinds[name].shape == "row" else window.along_time(name), mask)
    return arguments, any(mask.any() for mask in masks.values())


def window_end(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """Nothing ends, and the bootstrap outweighs all else: counted twice, or not at all, it shows."""
    for number, variant in enumerate(extent.variants(recurrence)):
        problem = drawn("B4", recurrence, variant, extent, number)
        window = Window(recurrence, problem.arguments)
        for name in ("terminated", "truncated", "starts"):
            if name in problem.arguments:
                problem.arguments[name][...] = 0
        for name in ("bootstrap_value", "initial"):
            if name in problem.arguments:
                problem.arguments[name][...] *= 1000
        for name in ("next_values", "expected_next_q", "next_q_values"):
            if name in problem.arguments:
                window.along_time(name)[-1:] *= 1000
        yield problem


def segments(rule: str, recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """Every other episode holds nothing but NaN and infinity, and the others don't notice. With B6 a zero discount ends it."""
    for number, (variant, layout) in enumerate(_few(recurrence, extent, "per step")):
        problem = drawn(rule, recurrence, variant, extent, number, layout)
        if rule == "B6" and not _zeros(Window(recurrence, problem.arguments)).any():
            continue
        arguments, untouched = spoilt(rule, recurrence, problem.arguments, number % 2)
        yield dataclasses.replace(problem, arguments=arguments, clean=problem.arguments, untouched=untouched)


def spoilt(rule: str, recurrence: Recurrence, arguments: Mapping[str, Any], which: int) -> tuple[dict[str, Any], np.ndarray]:
    """The arguments with nothing but NaN and infinity in every other episode, the odd ones or the even ones, and where that is not."""
    arguments = _copied(arguments)
    window = Window(recurrence, arguments)
    zeros = _zeros(window)
    # A factor belongs to its own step: forward it is on the edge into the step. A discount is on the edge out of it.
    cuts_in = zeros & ("factor" in arguments and not window.backward)
    cuts_out = zeros & (rule == "B6") & ~cuts_in
    edge_in = window.before_valid(window.ends | cuts_out) | window.starts | cuts_in
    segment = np.cumsum(edge_in & window.valid, axis=0)
    far = window.valid & (segment % 2 == which)
    for name in arguments:
        if window.per_step(name) and not window.kinds[name].flag:
            parameter = window.kinds[name].shape == "parameter"
            _poison(window.along_time(name), far & ~zeros if parameter else far, POISON[:1] if parameter else POISON)
    if "bootstrap_value" in arguments:
        _poison(arguments["bootstrap_value"], (window.last & far).any(axis=0))
    if "initial" in arguments:
        _poison(arguments["initial"], ((window.last if window.backward else window.first) & far).any(axis=0))
    return arguments, ~far


def _zeros(window: Window) -> np.ndarray:
    """Where a factor of 0 cuts."""
    return window.along_time("factor") == 0 if window.per_step("factor") else window.no_discount


def nan_inside(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """NaN or infinity at one step, in each of the arguments, also behind many small factors and in a ratio that is clipped."""
    every = sorted(extent.variants(recurrence, "per step"), key=lambda variant: -len(variant.given))
    for number, variant in enumerate(every if extent.full else every[:2]):
        for steps, small in ((extent.steps, False), (300, True)):
            problem = drawn("B9", recurrence, variant, extent, number, steps=steps)
            window = Window(recurrence, problem.arguments)
            place = -3 if window.backward else 3
            if small:
                for name in ("terminated", "truncated", "starts", "lam", "factor"):
                    if name in problem.arguments:
                        problem.arguments[name][...] = 0 if window.kinds[name].flag else 0.25
            elif "truncated" in problem.arguments:
                # In one row the successor's value is read, in whatever recurrence.
                for name, raised in (("terminated", 0), ("truncated", 1), ("valid", 1)):
                    if name in problem.arguments:
                        window.along_time(name)[place, :1] = raised
            for name in problem.arguments:
                if window.per_step(name) and not window.kinds[name].flag:
                    arguments = _copied(problem.arguments)
                    planted = POISON[number % 3] if window.kinds[name].shape != "parameter" else np.nan
                    Window(recurrence, arguments).along_time(name)[place] = planted
                    yield dataclasses.replace(problem, label=f"{planted} in {name}; {problem.label}", arguments=arguments)


def sizes(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """No steps, no rows, one step, and views that are not contiguous or repeat."""
    variant = extent.variants(recurrence)[-1]
    for rows, steps in ((4, 0), (0, 5), (0, 0), (4, 1), (1, 3)) + (((5, 2), (1, 1), (3, 257)) if extent.full else ()):
        for layout in LAYOUTS[: 3 if extent.full else 1]:
            yield drawn("B10", recurrence, variant, extent, 0, layout, steps=steps, rows=rows, note=f"{rows} x {steps}")
    arguments = draw(recurrence, variant, (extent.steps,), seed=extent.seed)
    yield Problem("B10", f"one row without an axis; {variant}", recurrence, arguments)
    for layout in LAYOUTS if extent.full else LAYOUTS[:2]:
        problem = drawn("B10", recurrence, dataclasses.replace(variant, form="per step"), extent, 0, layout)
        for how, view in (("every other element", _strided), ("transposed", np.asfortranarray), ("repeated along the first axis", _repeated)):
            viewed = {name: view(value) for name, value in problem.arguments.items() if isinstance(value, np.ndarray)}
            yield dataclasses.replace(problem, label=f"{how}; {problem.label}", arguments=problem.arguments | viewed)


def numbers(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """Every dtype, with flags of every dtype."""
    pairs = itertools.product(DTYPES, FLAG_DTYPES) if extent.full else zip(DTYPES, ("uint8", "int64", "float32", "int32"), strict=True)
    for number, (dtype, flag_dtype) in enumerate(pairs):
        variant = variants(recurrence, (FORMS[number % len(FORMS)],))[-1]
        yield drawn("B11", recurrence, variant, extent, number, dtype=dtype, flag_dtype=flag_dtype, note=f"flags {flag_dtype}")


def scale(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """More elements than 31 bits count, in both layouts."""
    if not extent.full:
        return
    steps = 16
    for layout in LAYOUTS[:2]:
        problem = drawn("B12", recurrence, variants(recurrence)[0], extent, 0, layout, "float16", steps=steps, rows=1)
        yield dataclasses.replace(problem, copies=2**31 // steps + 3)


def long_rows(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """Rows that kernels split over programs, with little and with much of what can be given. 1792 steps are whole tiles, but not as many for each program."""
    every = sorted(variants(recurrence), key=lambda variant: len(variant.given) + len(variant.options))
    lengths = (1792, 131072) if extent.full else (1792,)
    for number, (steps, variant, layout) in enumerate(itertools.product(lengths, (every[0], every[-1]), LAYOUTS[:2])):
        yield drawn("long", recurrence, variant, extent, number, layout, steps=steps, rows=2)


def known_cases(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """The public reports in `cases`, against the oracle and against their own results."""
    for case in cases.load():
        if case.op != recurrence.name or case.is_gradient:
            continue
        for dtype in ("float32", "float64") if extent.full else ("float32",):
            given = {name: held(x, dtype) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x for name, x in case.arguments.items()}

            def known(results: tuple, case: cases.Case = case) -> list[str]:
                return cases.check(case, dict(zip(recurrence.output_names, results, strict=True)))

            yield Problem("cases", f"{case.id}, {dtype}", recurrence, defaults(recurrence) | given, dtype, known=known)


def real_rollouts(recurrence: Recurrence, extent: Extent) -> Iterator[Problem]:
    """Gymnasium environments in each autoreset mode, with every source of the successor's value, and NaN in whatever is not read."""
    if recurrence.name not in rollouts.SOURCES:
        return
    environments = rollouts.TIME_LIMITS if extent.full else ("CartPole-v1",)
    for environment, mode in itertools.product(environments, rollouts.AUTORESET_MODES):
        rollout = _rollout(environment, mode, extent)
        for source in rollouts.sources_for(rollout, recurrence.name):
            clean, poisoned = (defaults(recurrence) | rollouts.arguments_for(rollout, recurrence.name, source, poison=poison) for poison in (False, True))
            yield Problem("rollouts", f"{environment}, {mode}, {source}", recurrence, poisoned, clean=clean)


@functools.cache
def _rollout(environment: str, mode: str, extent: Extent) -> rollouts.Rollout:
    return rollouts.collect(environment, mode, num_envs=16 if extent.full else 8, num_steps=200 if extent.full else 64, seed=extent.seed)


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    says: str
    problems: Callable[[Recurrence, Extent], Iterator[Problem]]


def _rule(rule: str, problems: Callable[[Recurrence, Extent], Iterator[Problem]]) -> Scenario:
    return Scenario(rule, RULES[rule].title, problems)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("random", "every way to call it, layout and dtype", random_data),
        *(_rule(rule, functools.partial(planted, rule)) for rule in ("B1", "B2", "B3")),
        _rule("B4", window_end),
        *(_rule(rule, functools.partial(segments, rule)) for rule in ("B5",)),
        Scenario("B6", RULES["B6"].title, lambda recurrence, extent: itertools.chain(planted("B6", recurrence, extent), segments("B6", recurrence, extent))),
        *(_rule(rule, functools.partial(planted, rule)) for rule in ("B7", "B8")),
        _rule("B9", nan_inside),
        _rule("B10", sizes),
        _rule("B11", numbers),
        _rule("B12", scale),
        Scenario("long", "1792 steps, and 131072 with --full, in both layouts", long_rows),
        Scenario("cases", "faults reported in public", known_cases),
        Scenario("rollouts", "real environments", real_rollouts),
    )
}


def problems(recurrence: Recurrence, extent: Extent, names: Iterable[str] = tuple(SCENARIOS)) -> Iterator[Problem]:
    """All problems of the scenarios named, for one recurrence."""
    for name in names:
        yield from SCENARIOS[name].problems(recurrence, extent)


def drawn(
    scenario: str,
    recurrence: Recurrence,
    variant: Variant,
    extent: Extent,
    number: int,
    layout: str = "batch-major",
    dtype: str = "float32",
    steps: int | None = None,
    rows: int | None = None,
    note: str = "",
    **settings: Any,
) -> Problem:
    """A problem of random numbers, whose seed has `number` in it."""
    shape, time_axis = shape_of(layout, extent.rows if rows is None else rows, extent.steps if steps is None else steps)
    arguments = draw(recurrence, variant, shape, time_axis, dtype=dtype, seed=extent.seed + number, **settings)
    label = "; ".join(part for part in (layout, dtype, f"T={shape[time_axis]}", note, str(variant)) if part)
    return Problem(scenario, label, recurrence, arguments, dtype)


def _few(recurrence: Recurrence, extent: Extent, form: Any) -> Iterator[tuple[Variant, str]]:
    """Variants with layouts: all pairs, or in a quick run all variants of a covering, time-major where the number is odd."""
    chosen = extent.variants(recurrence, form)
    if extent.full:
        yield from itertools.product(chosen, LAYOUTS)
    else:
        yield from ((variant, LAYOUTS[0]) for variant in chosen)


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def _poison(array: np.ndarray, where: np.ndarray, numbers: Sequence[float] = POISON) -> None:
    """Raised flags, or the numbers in turn."""
    array[where] = 1 if array.dtype.kind not in "f" else np.resize(numbers, array[where].shape)


_OFTEN = {"B1": ("terminated",), "B2": ("truncated",), "B3": ("terminated", "truncated"), "B7": ("terminated", "truncated", "starts")}


def _raised(rule: str, problem: Problem) -> list[str]:
    """The flags that the rule is about."""
    return [name for name in _OFTEN.get(rule, ()) if name in problem.arguments and (rule != "B7" or problem.recurrence.direction == "forward")]


def _raise_flags(problem: Problem, rule: str) -> None:
    """Make what the rule is about happen often."""
    window = Window(problem.recurrence, problem.arguments)
    often = np.random.default_rng(len(problem.label)).random(window.shape) < 0.3
    for name in _raised(rule, problem):
        window.along_time(name)[often] = 1
    if rule == "B2" and "terminated" in problem.arguments:
        window.along_time("terminated")[...] = 0


def _strided(array: np.ndarray) -> np.ndarray:
    """The same numbers, every other one in memory."""
    if not array.ndim:
        return array
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _repeated(array: np.ndarray) -> np.ndarray:
    """The first of the first axis everywhere along it, without a copy."""
    return np.broadcast_to(array[:1], array.shape) if array.ndim else array
