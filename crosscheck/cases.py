"""Credit assignment gone wrong in public, as small cases with known results.

`data/cases.json` holds one case a line: the numbers of a public report, the right result in float64, and the results of named
faulty variants. `load` turns each into the keyword arguments of one public function, so that a case is run by

    case = next(case for case in load() if case.id == "gae-truncation-final-obs")
    mismatches = check(case, getattr(rlscan.spec.reference, case.op)(**case.arguments))

and `recognise` names the faulty variant that a wrong result belongs to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data" / "cases.json"

# Case names of what the public functions call otherwise.
_OPS = {"prefix_sum": "episodic_prefix_sum", "linear_recurrence": "affine_scan"}
_ARGUMENTS = {
    "mask": "valid",
    "discounts": "gamma",
    "lambda": "lam",
    "lambdas": "lam",
    "features": "inputs",
    "next_expected_q": "expected_next_q",
    "seed": "initial",
    "a": "factor",
    "b": "addend",
}
_OUTPUTS = {"out": "y", "grad_a": "grad_factor", "grad_b": "grad_addend"}
_FLAGS = ("terminated", "truncated", "valid", "starts")

# `expected_q` and `a_without_reset` are what two faulty variants read, `lengths` says the same as `mask`, and `mask_mode` and
# `boundary` are said by the arguments that are passed.
_NOT_ARGUMENTS = ("expected_q", "a_without_reset", "lengths", "mask_mode", "boundary", "boundary_flags", "cu_seqlens", "grad_out")

# See `tolerance`.
_ROUNDINGS_PER_STEP = 24


@dataclass(frozen=True)
class Case:
    """One case in terms of the public functions.

    Attributes:
        id: name of the case.
        source: the public reports it comes from.
        kind: what sort of fault it is about.
        why: what is to be seen.
        op: name of the public function.
        arguments: its keyword arguments: float64 and bool arrays, plain numbers for scalars, and `time_axis`.
        expected: the right result of each output that the case speaks about. In a gradient case `grad_<argument>`.
        wrong: results of faulty variants, by the variant's name, in the form of `expected`.
        at: where along the time axis `expected` and `wrong` hold; None: everywhere. (Long rows are checked in some places.)
        feed_as: dtypes to try: for `bfloat16` of the floating arrays, else of the flags.
        grad_out: in a gradient case the gradient of the function's only output, whose gradients in the arguments are expected.
    """

    id: str
    source: str
    kind: str
    why: str
    op: str
    arguments: dict[str, Any]
    expected: dict[str, np.ndarray]
    wrong: dict[str, dict[str, np.ndarray]]
    at: np.ndarray | None = None
    feed_as: tuple[str, ...] = ()
    grad_out: np.ndarray | None = None

    @property
    def is_gradient(self) -> bool:
        return self.grad_out is not None


def load(path: Path = DATA) -> list[Case]:
    """All cases, in the file's order, as fresh arrays."""
    return [_case(record) for record in json.loads(path.read_text(encoding="utf-8"))]


def check(case: Case, outputs: Any, *, eps: float | None = None) -> list[str]:
    """What is wrong with `outputs`, a line for each place; empty if all is right.

    Args:
        case: the case that was run.
        outputs: what the function returned (an array, or a named tuple of arrays), or a mapping from output name to array. In a
            gradient case a mapping with the names in `case.expected`. Arrays are anything that `numpy.asarray` takes.
        eps: machine epsilon of the arithmetic; by default that of the outputs' dtype.
    """
    return _differences(case, case.expected, outputs, eps)


def recognise(case: Case, outputs: Any, *, eps: float | None = None) -> str | None:
    """Name of the faulty variant that gives these outputs, or None if they are right or wrong in another way."""
    if not check(case, outputs, eps=eps):
        return None
    return next((variant for variant, results in case.wrong.items() if not _differences(case, results, outputs, eps)), None)


def tolerance(case: Case, eps: float) -> float:
    """How far a right result may lie from the expected one, in arithmetic with machine epsilon `eps`.

    A rounding errs by at most eps/2 of what is rounded, and nothing that is formed exceeds the magnitude S (see `_magnitude`).
    One step takes at most 24 roundings. V-trace has most: the inputs of the step, 4 (reward, value, next value, log ratio); the
    exponential, 4 (good to 2 eps); gamma and lambda, 2; the TD error, 3; its ratio, 1; the factor, 3; carry times factor and
    addend, 2; the outputs, 5. A result goes through all T steps of its row at most, and the outermost addend through one more:

        |computed - expected| <= 24 (T + 1) eps/2 S

    (terms of order eps**2 are far below the slack in S). Where all numbers are integers, S < 1/eps, and no ratio is other than 1,
    every intermediate result is an integer that the format holds exactly, in any order of evaluation: the bound is then 0.
    """
    magnitude = _magnitude(case)
    if _is_exact(case) and magnitude < 1 / eps:
        return 0.0
    return _ROUNDINGS_PER_STEP * (_steps(case) + 1) * eps / 2 * magnitude


def _magnitude(case: Case) -> float:
    """A bound on the absolute value of everything that is added up, over all rows of the case.

    Three times the sum of the absolute values of all inputs (a value is read as V_t, as N_(t-1), and again in the outputs), times
    what factors above 1 can make of it: the clipped ratios of the TD error and of the outputs, and the factors of an affine scan.
    Gamma and lambda are at most 1. In a gradient case the result is a sum of products with the gradients that come in.
    """
    scale = 0.0
    growth = 1.0
    for name, value in case.arguments.items():
        if not isinstance(value, np.ndarray) or value.dtype == bool or name in ("gamma", "lam"):
            continue
        finite = np.abs(value[np.isfinite(value)])
        if name == "factor":
            growth *= float(np.prod(np.maximum(1.0, finite)))
        elif name == "log_rhos":
            # Ratios do not multiply along the row: the trace's bar is 1 in every case.
            growth *= max(1.0, case.arguments.get("rho_bar", 1.0)) * max(1.0, case.arguments.get("pg_rho_bar", 1.0))
        else:
            scale += float(finite.sum())
    incoming = 1.0 if case.grad_out is None else max(1.0, float(np.abs(case.grad_out).sum()))
    return 3 * scale * growth * incoming


def _is_exact(case: Case) -> bool:
    """Whether all numbers that are read are integers, and all ratios exactly 1."""
    # What is not given has its default, which is a fraction for most.
    scalars = {"affine_scan": (), "episodic_prefix_sum": (), "discounted_returns": ("gamma",)}.get(case.op, ("gamma", "lam"))
    if any(name not in case.arguments for name in scalars) or np.any(case.arguments.get("log_rhos", 0.0)):
        return False
    numbers = [np.asarray(number, dtype=np.float64) for number in case.arguments.values()]
    if case.grad_out is not None:
        numbers.append(case.grad_out)
    return all(np.array_equal(number[np.isfinite(number)], np.rint(number[np.isfinite(number)])) for number in numbers)


def _steps(case: Case) -> int:
    first = next(case.arguments[name] for name in ("rewards", "inputs", "addend") if name in case.arguments)
    # Inputs with a feature axis are one row, [T, F].
    return first.shape[0] if case.op == "eligibility_traces" else first.shape[case.arguments["time_axis"]]


def _differences(case: Case, wanted_outputs: dict[str, np.ndarray], outputs: Any, eps: float | None) -> list[str]:
    if isinstance(outputs, Mapping):
        given = dict(outputs)
    elif hasattr(outputs, "_asdict"):
        given = outputs._asdict()
    else:
        given = {next(iter(wanted_outputs)): outputs}
    differences = []
    for name, wanted in wanted_outputs.items():
        if name not in given:
            differences.append(f"{name}: missing, the outputs are {', '.join(given) or 'none'}")
            continue
        got = np.asarray(given[name])
        shape = wanted.shape if case.at is None else (_steps(case),)
        if got.shape != shape:
            differences.append(f"{name}: has shape {got.shape}, wanted {shape}")
            continue
        bound = tolerance(case, float(np.finfo(got.dtype).eps) if eps is None else eps)
        places = list(np.ndindex(wanted.shape)) if case.at is None else [(int(t),) for t in case.at]
        for place, value in zip(places, wanted.flat, strict=True):
            if not _close(float(got[place]), float(value), bound):
                differences.append(f"{name}{list(place)} is {got[place]!s}, wanted {value!s} within {bound:.1e}")
    return differences


def _close(got: float, wanted: float, bound: float) -> bool:
    """Within the bound; NaN agrees with NaN, and an infinity with the same infinity."""
    return got == wanted or (math.isnan(got) and math.isnan(wanted)) or abs(got - wanted) <= bound


def _case(record: dict[str, Any]) -> Case:
    """One line of the file in terms of the public functions."""
    inputs: dict[str, Any] = record["inputs"]
    parameters: dict[str, Any] = record["params"]
    case_op: str = record["op"].removesuffix("_grad")
    op = _OPS.get(case_op, case_op)
    time_axis = 0 if record["layout"] == "time_major" else -1
    arguments: dict[str, Any] = {}
    for case_name, value in (inputs | parameters).items():
        if case_name in _NOT_ARGUMENTS:
            continue
        name = _ARGUMENTS.get(case_name, case_name)
        is_scalar = isinstance(value, int | float) and name != "bootstrap_value"
        arguments[name] = value if is_scalar else _array(value, np.bool_ if name in _FLAGS else np.float64)
    if "boundary_flags" in inputs:
        name = {"ends_at": "terminated", "starts_at": "starts"}[parameters["boundary"]]
        arguments[name] = _array(inputs["boundary_flags"], np.bool_)
    if op == "affine_scan":
        # There the factors are the discounts; the parameter only tells a faulty variant what it is to use.
        arguments.pop("gamma", None)
    elif "starts" not in arguments:
        _complete(op, arguments, inputs, time_axis)
    arguments["time_axis"] = time_axis

    expected, at = _outputs(record["expected"])
    return Case(
        id=record["id"],
        source=record["source"],
        kind=record["kind"],
        why=record["why"],
        op=op,
        arguments=arguments,
        expected=expected,
        wrong={variant: _outputs(outputs)[0] for variant, outputs in record.get("wrong", {}).items()},
        at=at,
        feed_as=tuple(record.get("feed_as", ())),
        grad_out=_array(inputs["grad_out"], np.float64) if "grad_out" in inputs else None,
    )


def _complete(op: str, arguments: dict[str, Any], inputs: dict[str, Any], time_axis: int) -> None:
    """Add what the file leaves out: flags that are never raised, and where the value behind the window's end comes from."""
    steps = arguments["inputs"] if "inputs" in arguments else arguments["rewards"]
    arguments.setdefault("terminated", np.zeros(steps.shape, dtype=np.bool_))
    if op not in ("gae", "vtrace", "lambda_returns", "discounted_returns"):
        return
    if "cu_seqlens" in inputs:
        # Rows end to end are one row that is cut at the last step of each: truncated there (where it isn't terminated), with the
        # row's own bootstrap as the value behind it. Elsewhere the value behind a step is that of the step after it.
        lasts = np.array(inputs["cu_seqlens"][1:]) - 1
        arguments["next_values"] = np.append(arguments["values"][1:], 0.0)
        arguments["next_values"][lasts] = arguments.pop("bootstrap_value")
        arguments["truncated"] = np.zeros(steps.shape, dtype=np.bool_)
        arguments["truncated"][lasts] = ~arguments["terminated"][lasts]
    elif "next_values" in arguments:
        # The two say the same of the last step; only one may be given.
        arguments.pop("bootstrap_value", None)
    elif "bootstrap_value" in arguments or op != "discounted_returns":
        # Absent means 0. Discounted returns may do without, which the cases without one then exercise.
        arguments.setdefault("bootstrap_value", np.zeros(np.delete(steps.shape, time_axis)))
        if "truncated" in arguments:
            # No case is truncated before the window's end without telling the next values, so what lies behind a truncation is
            # the bootstrap. (`returns-window-end-bootstrap` has one at its last step and expects 1 + 0.9 * 4 there; in the others
            # the flag is never raised.) The rest is poison, for it isn't read.
            final_values = np.full(steps.shape, np.nan)
            np.moveaxis(final_values, time_axis, -1)[..., -1:] = arguments["bootstrap_value"][..., None]
            arguments["final_values"] = np.where(arguments["truncated"], final_values, np.nan)


def _outputs(record: dict[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Outputs by their public names, and the places they hold at if they are not whole arrays."""
    outputs, at = {}, None
    for name, value in record.items():
        if isinstance(value, dict):
            at = np.array([int(index) for index in value["at"]])
            value = list(value["at"].values())
        outputs[_OUTPUTS.get(name, name)] = _array(value, np.float64)
    return outputs, at


def _array(value: Any, dtype: type[np.generic]) -> np.ndarray:
    """A list (in which NaN and infinity are strings), or a fill with exceptions, as an array."""
    if isinstance(value, dict):
        fill, size = value["fill"]
        array = np.full(size, fill, dtype=np.float64)
        for index, exception in value.get("set", {}).items():
            array[int(index)] = exception
    else:
        array = np.array(value, dtype=np.float64)
    return array.astype(dtype)
