"""Random arguments for any declared recurrence, in every combination that the validator lets through.

    for variant in variants(recurrence):
        arguments = draw(recurrence, variant, shape=(8, 100), seed=1)
        result = run(recurrence, arguments)

All is taken from the declaration, so a recurrence is covered by being declared. Arrays are NumPy's; bfloat16, which NumPy
has not, is held in float32 by numbers that bfloat16 has too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from rlscan.spec.arguments import REQUIRED, Argument
from rlscan.spec.calls import check
from rlscan.spec.recurrences import Recurrence
from rlscan.spec.reference import NumPyArrays

Form = Literal["number", "0-d", "per row", "per time", "per step"]
FORMS: tuple[Form, ...] = ("number", "0-d", "per row", "per time", "per step")
"""How a parameter such as gamma is given. One that may not broadcast is given per step where it would."""

DTYPES = ("float32", "float64", "float16", "bfloat16")
FLAG_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64", "float16")

# How often a flag is raised; other flags a tenth of the time.
_RATES = {"valid": 0.8, "terminated": 0.08, "truncated": 0.08}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to call a recurrence.

    Attributes:
        given: the optional arrays that are given.
        options: the options that are not at their default.
        form: of the parameters.
    """

    given: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    form: Form = "number"

    def __str__(self) -> str:
        parts = [*self.given, *(f"{name}={value}" for name, value in self.options)]
        if self.form != "number":
            parts.append(f"parameters {self.form}")
        return ", ".join(parts) or "nothing optional"

    @property
    def is_masked(self) -> bool:
        """Whether it is said for each step if it is a transition."""
        return "valid" in self.given

    def gives(self, *names: str) -> bool:
        return set(names) <= {*self.given, *(name for name, _ in self.options)}


def variants(recurrence: Recurrence, forms: Iterable[Form] = ("number",)) -> tuple[Variant, ...]:
    """Every legal way to call `recurrence` that differs in what is read."""
    has_parameters = any(argument.shape == "parameter" for argument in recurrence.arguments)
    return tuple(dataclasses.replace(variant, form=form) for form in (forms if has_parameters else ("number",)) for variant in _variants(recurrence))


@functools.cache
def _variants(recurrence: Recurrence) -> tuple[Variant, ...]:
    arrays = [argument for argument in recurrence.arguments if argument.shape not in ("parameter", "number", "option")]
    optional = [argument.name for argument in arrays if argument.default is not REQUIRED]
    options = [[(argument.name, choice) for choice in argument.choices] for argument in recurrence.arguments if argument.choices]
    defaults = {argument.name: argument.default for argument in recurrence.arguments}
    legal: dict[Any, Variant] = {}
    for chosen in itertools.product(*options):
        for size in range(len(optional) + 1):
            for given in itertools.combinations(optional, size):
                variant = Variant(given, tuple((name, choice) for name, choice in chosen if choice != defaults[name]))
                try:
                    call = check(recurrence, draw(recurrence, variant, shape=(2, 3)), NumPyArrays())
                except (TypeError, ValueError):
                    continue
                legal.setdefault((call.wiring, frozenset(call.arrays)), variant)
    return tuple(legal.values())


def draw(
    recurrence: Recurrence,
    variant: Variant,
    shape: tuple[int, ...],
    time_axis: int = -1,
    *,
    features: tuple[int, ...] = (),
    actions: int = 3,
    dtype: str = "float32",
    flag_dtype: str = "bool",
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments by their public names.

    An array depends on the seed, its name and its shape alone: what two variants both give is the same in both.

    Args:
        recurrence: what is called.
        variant: one of `variants(recurrence)`.
        shape: of the flags and of the rewards; with `features` behind it that of inputs.
        time_axis: in `shape`.
        features: axes behind those of the flags, where the recurrence has inputs.
        actions: A, where something has an action axis.
        dtype: one of `DTYPES`.
        flag_dtype: of the flags: one of `FLAG_DTYPES`. A raised flag is any nonzero number.
        seed: of all the random numbers.
    """
    arguments = defaults(recurrence)
    for argument in recurrence.arguments:
        random = np.random.default_rng([seed, zlib.crc32(argument.name.encode())])
        if argument.shape == "option":
            arguments |= {argument.name: time_axis} if argument.name == "time_axis" else {}
        elif argument.shape == "number":
            arguments |= _number(argument, random)
        elif argument.shape == "parameter":
            arguments[argument.name] = _parameter(argument, variant.form, shape, time_axis, dtype, random)
        elif argument.default is REQUIRED or argument.name in variant.given:
            arguments[argument.name] = _array(argument, shape, time_axis, features, actions, dtype, flag_dtype, random)
    return arguments | dict(variant.options)


def exact(recurrence: Recurrence, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same call with numbers whose sums and products over a few steps are exact, so that results and derivatives are the same in any order."""
    random, made = np.random.default_rng(0), dict(arguments)
    for argument in recurrence.arguments:
        x = made.get(argument.name)
        if argument.shape == "number" or (argument.shape == "parameter" and x is not None and not isinstance(x, np.ndarray)):
            made[argument.name] = 2.0 if argument.shape == "number" else 0.5
        elif isinstance(x, np.ndarray) and not argument.flag:
            halves = argument.shape == "parameter" or argument.name == "next_policy"
            made[argument.name] = random.choice([0] if argument.logarithm else [0.5, 1] if halves else [-2, -1, 1, 3], x.shape).astype(x.dtype)
    return made


def defaults(recurrence: Recurrence) -> dict[str, Any]:
    """What stands for the numbers and options that a caller leaves out; arrays have no defaults."""
    return {argument.name: argument.default for argument in recurrence.arguments if argument.default is not REQUIRED and argument.default is not None}


def held(array: np.ndarray, dtype: str) -> np.ndarray:
    """`array` in `dtype`; for bfloat16 cut to its numbers, in float32."""
    if dtype != "bfloat16":
        return array.astype(dtype)
    return (array.astype(np.float32, order="C").view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).reshape(array.shape)


def flag(raised: np.ndarray, dtype: str, random: np.random.Generator) -> np.ndarray:
    """Flags of any dtype."""
    if dtype == "bool":
        return raised
    number = {"f": 0.5, "i": -1, "u": 2}[np.dtype(dtype).kind]
    return np.where(raised, random.choice([1, number], raised.shape), 0).astype(dtype)


def _array(
    argument: Argument,
    shape: tuple[int, ...],
    time_axis: int,
    features: tuple[int, ...],
    actions: int,
    dtype: str,
    flag_dtype: str,
    random: np.random.Generator,
) -> np.ndarray:
    if argument.flag:
        return flag(random.random(shape) < _RATES.get(argument.name, 0.1), flag_dtype, random)
    time_axis %= len(shape)
    whole = {
        "steps": shape,
        "inputs": shape + features,
        # what has no time has the shape of the first argument without it, features included
        "row": shape[:time_axis] + shape[time_axis + 1 :] + features,
        "actions": (*shape, actions),
    }[argument.shape]
    numbers = random.normal(size=whole)
    if argument.name == "next_policy":
        probabilities = np.exp(numbers) * (random.random(whole) < 0.8)
        numbers = probabilities / np.maximum(probabilities.sum(-1, keepdims=True), 1e-3)
    elif argument.name.startswith("log_"):
        numbers *= 0.5
    return held(numbers, dtype)


def _number(argument: Argument, random: np.random.Generator) -> Mapping[str, Any]:
    """The default, no bar at all, or any bar."""
    choices: list[dict[str, Any]] = [{}, {argument.name: None}, {argument.name: float(random.uniform(0.5, 2.0))}]
    return choices[random.integers(len(choices))]


def _parameter(argument: Argument, form: Form, shape: tuple[int, ...], time_axis: int, dtype: str, random: np.random.Generator) -> Any:
    if form in ("per row", "per time") and argument.low is None:
        form = "per step"
    time_axis %= len(shape)
    whole = {
        "per row": (*shape[:time_axis], 1, *shape[time_axis + 1 :]),
        "per time": tuple(size if axis == time_axis else 1 for axis, size in enumerate(shape)),
        "per step": shape,
    }.get(form, ())
    low, high = (-1.1, 1.1) if argument.low is None else (0.7, 1.0)
    numbers = high - (high - low) * random.random(whole) ** 2
    if form == "number":
        return float(numbers)
    if form != "0-d":
        # the two ends have a meaning of their own: a cut, and no decay
        numbers = np.where(random.random(whole) < 0.05, 0.0, np.where(random.random(whole) < 0.05, 1.0, numbers))
    return held(np.asarray(numbers), dtype)
