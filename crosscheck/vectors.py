"""Conformance vectors: small calls with their results, and those of faulty variants, for implementations in other languages.

All is made from the declarations, in exact arithmetic, and written to `data/vectors`: a JSON file for each recurrence, and the
JSON Schema of all. `docs/vectors.md` is for who reads them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rlscan.crosscheck import rational
from rlscan.crosscheck.draw import FORMS, Variant, draw, variants
from rlscan.crosscheck.mutants import MUTATIONS, exchanged, mutants
from rlscan.crosscheck.scenarios import Problem, covering, hidden, shape_of, spoilt
from rlscan.crosscheck.unread import Window
from rlscan.spec.arguments import ARGUMENTS, Argument
from rlscan.spec.bound import bound
from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.reference import NumPyArrays
from rlscan.spec.rules import RULES

FORMAT = 1
"""Another number where what reads the files must change (docs/vectors.md)."""

DATA = Path(__file__).parent / "data" / "vectors"
SCHEMA = "schema.json"

LAYOUTS = {"batch": "batch-major", "time": "time-major"}
DTYPES = ("float32", "float64")
PARAMETERS = tuple(name for name, argument in ARGUMENTS.items() if argument.shape in ("parameter", "number", "option") and name != "time_axis")

ROWS, STEPS, ACTIONS, FEATURES = 2, 5, 3, 2

# How often a flag is raised where a rule is to be seen. B4 is about windows in which nothing ends.
_RATES: dict[str, dict[str, float]] = {
    "B1": {"terminated": 0.4},
    "B2": {"truncated": 0.4, "terminated": 0.0},
    "B3": {"terminated": 0.4, "truncated": 0.6},
    "B4": {"terminated": 0.0, "truncated": 0.0, "starts": 0.0},
    "B11": {"terminated": 0.15, "truncated": 0.15, "starts": 0.15},
    "B8": {"valid": 0.6, "terminated": 0.2, "truncated": 0.2},
}
_RATE = {"valid": 0.8}
_USUAL_RATE = 0.25

# So few bits that products of them all fit in a float32.
_NUMBERS: dict[str, tuple[float, ...]] = {
    "gamma": (0.5, 0.75, 1.0),
    "lam": (0.5, 1.0),
    "factor": (-1.0, -0.5, 0.5, 1.0),
    "rho_bar": (0.5, 1.0, 2.0),
    "c_bar": (0.5, 1.0),
    "pg_rho_bar": (0.5, 2.0),
    # of ratios only 0 and 1 are fractions
    "log_rhos": (0.0, 0.0, -math.inf),
}
_INEXACT_LOG_RHOS = tuple(n / 4 for n in range(-4, 5))
_POLICIES = ((0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.0, 0.25, 0.75), (1.0, 0.0, 0.0), (0.5, 0.5, 0.0))
_HALVES = tuple(n / 2 for n in range(-8, 9) if n)
# Each is a number of half precision, and a sum of a large and a small one is not.
_OF_TWO_SIZES = (*(n / 32 for n in range(1, 16, 2)), *(32.0 * n for n in range(3, 8)))


def vectors(recurrence: Recurrence) -> list[dict[str, Any]]:
    """All vectors of a recurrence, as they stand in the file."""
    made: list[dict[str, Any]] = []
    for rule, problems in itertools.groupby(_problems(recurrence), lambda problem: problem.scenario):
        shown = (vector for vector in map(_vector, problems) if _shows(rule, recurrence, vector))
        made += ({"id": f"{recurrence.name}/{rule}/{number}", **vector} for number, vector in enumerate(shown))
    return made


def _shows(rule: str, recurrence: Recurrence, vector: dict[str, Any]) -> bool:
    """Whether what the rule is about happens: who breaks it has other results, or NaN arrives."""
    if rule == "B9":
        return any("NaN" in output["float64"] for output in vector["expected"].values())
    broken = {mutant.mutation.rule for mutant in mutants(recurrence)}
    return rule not in RULES or rule not in broken or any(fault["rule"] == rule for fault in vector["faulty"])


@functools.cache
def files() -> Mapping[str, str]:
    """The text of each file, by its name."""
    texts = {SCHEMA: json.dumps(schema(), indent=1) + "\n"}
    for recurrence in RECURRENCES.values():
        # a vector a line, so that a change is seen where it is
        lines = ",\n".join(json.dumps(vector, allow_nan=False, separators=(",", ":")) for vector in vectors(recurrence))
        texts[f"{recurrence.name}.json"] = f'{{"$schema":"{SCHEMA}","format":{FORMAT},"vectors":[\n{lines}\n]}}\n'
    return texts


def write(folder: Path) -> None:
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


def outdated(folder: Path) -> list[str]:
    """The names of the files that are not what the declarations give."""
    return [name for name, text in files().items() if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text]


def _problems(recurrence: Recurrence) -> Iterator[Problem]:
    """Every way to call it, each rule, and sizes and types."""
    every, few = variants(recurrence), covering(variants(recurrence))
    most = max(few, key=lambda variant: len(variant.given))
    for number, variant in enumerate(every):
        yield _drawn("formula", recurrence, dataclasses.replace(variant, form=FORMS[number % len(FORMS)]), number)
    if any(argument.shape == "inputs" for argument in recurrence.arguments):
        yield from (_drawn("formula", recurrence, most, number, features=(FEATURES,)) for number in range(2))
    if "log_rhos" in recurrence.argument_names:
        for number, variant in enumerate(few[:3]):
            yield _drawn("formula", recurrence, variant, number, numbers={"log_rhos": _INEXACT_LOG_RHOS})
    per_step = [dataclasses.replace(variant, form="per step") for variant in few]
    zeros = {name: (0.0, *_NUMBERS[name]) for name in ("gamma", "factor")}
    for rule in ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8"):
        for number, variant in enumerate(few if rule == "B4" else per_step):
            problem = _drawn(rule, recurrence, variant, number, numbers=zeros if rule == "B6" else {})
            if rule == "B4":
                yield problem
            if rule in ("B5", "B6"):
                arguments, untouched = spoilt(rule, recurrence, problem.arguments, number % 2)
                if untouched.any() and not untouched.all():
                    yield dataclasses.replace(problem, arguments=arguments)
            if rule not in ("B4", "B5"):
                arguments, anywhere = hidden(rule, recurrence, problem.arguments)
                if anywhere:
                    yield dataclasses.replace(problem, arguments=arguments)
    yield from _nan_inside(recurrence, most)
    for number, shape in enumerate(((ROWS, 0), (0, STEPS), (ROWS, 1), (STEPS,))):
        yield _drawn("B10", recurrence, most, number, shape=shape, time_axis=-1)
    wide = {name: _OF_TWO_SIZES for name in recurrence.argument_names if name not in _NUMBERS} | dict.fromkeys(("gamma", "lam", "factor"), (1.0,))
    for number, flag_dtype in enumerate(("int8", "uint8", "float32")):
        yield _drawn("B11", recurrence, most, number, numbers=wide, flag_dtype=flag_dtype)


def _nan_inside(recurrence: Recurrence, variant: Variant) -> Iterator[Problem]:
    """NaN in one step of one row, in each argument in turn."""
    problem = _drawn("B9", recurrence, variant, 0)
    window = Window(recurrence, problem.arguments)
    for name in [name for name in problem.arguments if window.per_step(name) and not window.kinds[name].flag]:
        arguments = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in problem.arguments.items()}
        planted = Window(recurrence, arguments)
        for flag in {"terminated", "truncated", "starts", "valid"} & set(arguments):
            # a final value is read where the episode was cut, and nowhere else
            planted.along_time(flag)[STEPS // 2] = flag == "valid" or (flag == "truncated" and name == "final_values")
        planted.along_time(name)[STEPS // 2, :1] = np.nan
        yield dataclasses.replace(problem, arguments=arguments)


def _drawn(
    rule: str,
    recurrence: Recurrence,
    variant: Variant,
    number: int,
    numbers: Mapping[str, tuple[float, ...]] = {},
    shape: tuple[int, ...] | None = None,
    time_axis: int = -1,
    **settings: Any,
) -> Problem:
    """A call whose layout alternates, with numbers that are the same in every version of NumPy."""
    if shape is None:
        shape, time_axis = shape_of(list(LAYOUTS.values())[number % 2], ROWS, STEPS)
    arguments = draw(recurrence, variant, shape, time_axis, actions=ACTIONS, **settings)
    for argument in recurrence.arguments:
        source = random.Random(f"{rule} {number} {argument.name}")
        value = arguments.get(argument.name)
        if argument.flag and value is not None:
            rate = _RATES.get(rule, {}).get(argument.name, _RATE.get(argument.name, _USUAL_RATE))
            raised = np.array([source.random() < rate for _ in range(value.size)], bool).reshape(value.shape)
            arguments[argument.name] = _flags(raised, value.dtype, source)
        elif isinstance(value, np.ndarray):
            arguments[argument.name] = _array(argument, value.shape, numbers, source).astype(np.float32)
        elif argument.shape in ("parameter", "number"):
            arguments[argument.name] = _chosen(numbers.get(argument.name, _NUMBERS.get(argument.name, (0.5, 1.0))), source)
        if argument.shape == "number" and source.random() < 0.2:
            arguments[argument.name] = None
    return Problem(rule, "", recurrence, arguments)


def _chosen(choices: tuple[Any, ...], source: random.Random) -> Any:
    # of what `random` offers, only this is promised to stay as it is
    return choices[int(source.random() * len(choices))]


def _flags(raised: np.ndarray, dtype: np.dtype, source: random.Random) -> np.ndarray:
    number = {"b": True, "i": -1, "u": 2, "f": 0.5}[dtype.kind]
    either = np.array([_chosen((1, number), source) for _ in range(raised.size)], dtype).reshape(raised.shape)
    return np.where(raised, either, dtype.type(0))


def _array(argument: Argument, shape: tuple[int, ...], numbers: Mapping[str, tuple[float, ...]], source: random.Random) -> np.ndarray:
    if argument.name == "next_policy":
        return np.array([_chosen(_POLICIES, source) for _ in range(math.prod(shape[:-1]))]).reshape(shape)
    choices = numbers.get(argument.name, _NUMBERS.get(argument.name, _HALVES))
    return np.array([_chosen(choices, source) for _ in range(math.prod(shape))], float).reshape(shape)


def _vector(problem: Problem) -> dict[str, Any]:
    """All but the id."""
    recurrence, arguments = problem.recurrence, problem.arguments
    expected = _results(recurrence, arguments)
    faulty = []
    for mutant in mutants(recurrence):
        with exchanged(mutant.mutation.around):
            results = _results(mutant.recurrence, mutant.arguments(arguments))
        if any(results[name]["float64"] != output["float64"] for name, output in expected.items()):
            faulty.append({"variant": mutant.mutation.name, "rule": mutant.mutation.rule, "outputs": results})
    # a faulty result is compared, and not read
    for output in (output for variant in faulty for output in variant["outputs"].values()):
        del output["shape"]
        output.pop("exact", None)
    shown = {problem.scenario, *(variant["rule"] for variant in faulty)}
    return {
        "op": recurrence.name,
        "layout": "time" if arguments["time_axis"] == 0 else "batch",
        "rules": [rule for rule in RULES if rule in shown],
        "arguments": {name: _written(value) for name, value in arguments.items() if isinstance(value, np.ndarray)},
        "parameters": _parameters(recurrence, arguments),
        "expected": expected,
        "faulty": faulty,
    }


def _parameters(recurrence: Recurrence, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All numbers and options, given or not, but for what the layout says."""
    values = {argument.name: arguments.get(argument.name, argument.default) for argument in recurrence.arguments if argument.name in PARAMETERS}
    return {name: _number(x) if isinstance(x, float) else x for name, x in values.items() if not isinstance(x, np.ndarray)}


def _written(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "data": [_number(x) for x in array.ravel().tolist()]}


def _number(x: Any) -> int | float | str:
    """As JSON has it, which knows neither NaN nor infinity."""
    x = float(x)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "Infinity" if x > 0 else "-Infinity"
    return int(x) if x.is_integer() else x


def _results(recurrence: Recurrence, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Each output rounded to float64, and as it is if it is a fraction; else with a bound on the error."""
    written = {}
    for place, (name, output) in enumerate(zip(recurrence.output_names, rational.loop(check(recurrence, arguments, NumPyArrays())), strict=True)):
        values = [x.value for x in output.ravel()]
        written[name] = {"shape": list(output.shape), "float64": [_number(x) for x in values]}
        if all(_dyadic(x) for x in values):
            written[name]["exact"] = [str(x) if isinstance(x, Fraction) else _number(x) for x in values]
        else:
            written[name]["bound"] = {dtype: _bounds(recurrence, arguments, dtype)[place] for dtype in DTYPES}
    return written


def _dyadic(x: Fraction | float) -> bool:
    """Arguments are multiples of powers of 1/2, and so is every result that has no exponential in it."""
    return not isinstance(x, Fraction) or x.denominator.bit_count() == 1


def _bounds(recurrence: Recurrence, arguments: Mapping[str, Any], dtype: str) -> list[list[Any]]:
    """Of each output, from the derived bound, with the digits that are the same on every machine."""
    given = {name: x.astype(dtype) if isinstance(x, np.ndarray) and not ARGUMENTS[name].flag else x for name, x in arguments.items()}
    with np.errstate(all="ignore"):
        limits = bound(check(recurrence, given, NumPyArrays()))
    return [[_number(f"{1.001 * x:.3g}") for x in limit.ravel().tolist()] for limit in limits]


def schema() -> dict[str, Any]:
    """The JSON Schema of the files."""
    special = {"enum": ["NaN", "Infinity", "-Infinity"]}
    number = {"anyOf": [{"type": "number"}, special]}
    fraction = {"anyOf": [{"type": "string", "pattern": "^-?[0-9]+(/[0-9]+)?$"}, special]}

    def listed(items: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": items}

    def record(required: dict[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required), "additionalProperties": False}

    def by_name(names: Any, items: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "propertyNames": {"enum": list(names)}, "additionalProperties": items}

    arrays = [name for name, argument in ARGUMENTS.items() if argument.shape not in ("number", "option")]
    outputs = dict.fromkeys(name for recurrence in RECURRENCES.values() for name in recurrence.output_names)
    shape = {"shape": listed({"type": "integer", "minimum": 0})}
    numbers = {"float64": listed({"$ref": "#/$defs/number"})}
    exact = {"exact": listed({"$ref": "#/$defs/fraction"})}
    bounds = {"bound": record({dtype: listed({"type": "number", "minimum": 0}) for dtype in DTYPES})}
    vector = record(
        {
            "id": {"type": "string"},
            "op": {"enum": list(RECURRENCES)},
            "layout": {"enum": list(LAYOUTS)},
            "rules": listed({"enum": list(RULES)}),
            "arguments": by_name(arrays, {"$ref": "#/$defs/array"}),
            "parameters": by_name(PARAMETERS, {"type": ["number", "string", "boolean", "null"]}),
            "expected": by_name(outputs, {"oneOf": [record(shape | numbers | exact), record(shape | numbers | bounds)]}),
            "faulty": listed({"$ref": "#/$defs/fault"}),
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rlscan conformance vectors",
        **record({"format": {"const": FORMAT}, "vectors": listed({"$ref": "#/$defs/vector"})}, {"$schema": {"type": "string"}}),
        "$defs": {
            "number": number | {"description": "A JSON number, or a string for what is none."},
            "fraction": fraction | {"description": "p/q in lowest terms, or p."},
            "array": record(shape | {"data": listed({"$ref": "#/$defs/number"})}) | {"description": "Row-major. Flags are numbers: nonzero is true."},
            "fault": record(
                {
                    "variant": {"enum": [mutation.name for mutation in MUTATIONS]},
                    "rule": {"enum": list(dict.fromkeys(mutation.rule for mutation in MUTATIONS))},
                    "outputs": by_name(outputs, record(numbers, bounds)),
                }
            ),
            "vector": vector,
        },
    }
