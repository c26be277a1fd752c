"""What other people's training code does with a function - differentiates, batches, compiles, exports it - with every operation.

Each transformation is data: a name, what is checked, and a check that takes one call and raises an `AssertionError` where it is wrong. Those of PyTorch
are in `transformations_of_torch.py`, those of JAX in `transformations_of_jax.py`. `outcome` runs one on one operation; what it says is a
cell of `docs/transformations.md`, and the tests run each cell again.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rlscan.crosscheck import report
from rlscan.crosscheck.backends import as_tuple
from rlscan.crosscheck.compare import wrong
from rlscan.crosscheck.draw import draw, variants
from rlscan.crosscheck.scenarios import Problem
from rlscan.spec import reference
from rlscan.spec.bound import U64
from rlscan.spec.recurrences import RECURRENCES, Recurrence

Framework = Literal["torch", "jax"]
FRAMEWORKS: dict[Framework, str] = {"torch": "PyTorch", "jax": "JAX"}

SHAPE = (3, 5)
# another size than those, or compilers take them for one
ACTIONS = 2

OPERATIONS = 20
"""Of one step, at most, from arguments to results; their derivatives in reverse are three times as many."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One call, with all that may be given: NumPy arrays, and parameters for each step."""

    recurrence: Recurrence
    arguments: dict[str, Any]

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: x for name, x in self.arguments.items() if isinstance(x, np.ndarray)}

    @functools.cached_property
    def floats(self) -> dict[str, np.ndarray]:
        """What derivatives are taken by."""
        return {name: x for name, x in self.arrays.items() if x.dtype.kind == "f"}

    @functools.cached_property
    def others(self) -> dict[str, Any]:
        return {name: x for name, x in self.arguments.items() if name not in self.arrays}

    @functools.cached_property
    def directions(self) -> dict[str, np.ndarray]:
        """One for each of `floats`."""
        random = np.random.default_rng(1)
        return {name: random.normal(size=x.shape) for name, x in self.floats.items()}

    @functools.cached_property
    def weights(self) -> list[np.ndarray]:
        """For each output, what its elements count for in the loss that is differentiated."""
        return [np.random.default_rng(number).normal(size=self.shape) for number in range(len(self.recurrence.output_names))]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[self.recurrence.frame.name].shape

    @property
    def parameter(self) -> str | None:
        """A number that may be an array, gamma where there is one."""
        names = [argument.name for argument in self.recurrence.arguments if argument.shape == "parameter"]
        return names[0] if names else None

    def loss(self, arguments: dict[str, Any]) -> float:
        """By the loop."""
        results = as_tuple(reference.run(self.recurrence, arguments))
        return sum(float((result * weight).sum()) for result, weight in zip(results, self.weights, strict=True))


def case(recurrence: Recurrence, seed: int = 0, shape: tuple[int, int] = SHAPE, dtype: str = "float64") -> Case:
    """What is given most."""
    variant = max(variants(recurrence, ("per step",)), key=lambda variant: len(variant.given))
    return Case(recurrence, draw(recurrence, variant, shape, dtype=dtype, seed=seed, actions=ACTIONS))


Check = Callable[[Case], "str | None"]


@dataclasses.dataclass(frozen=True)
class Transformation:
    """One thing that is done with a function.

    Attributes:
        name: as its library writes it.
        framework: whose it is.
        says: what is checked.
        check: raises an `AssertionError` where the call is wrong; gives a named error where there must be one.
        lacks: why it means nothing for an operation; None where it does.
    """

    name: str
    framework: Framework
    says: str
    check: Check
    lacks: Callable[[Case], str | None] = lambda case: None


def transformations(framework: Framework) -> dict[str, Transformation]:
    """All of a framework, which is imported, by their names."""
    module = importlib.import_module(f"rlscan.crosscheck.transformations_of_{framework}")
    return {one.name: one for one in module.TRANSFORMATIONS}


def outcome(transformation: Transformation, recurrence: Recurrence) -> str:
    """The cell of a table: what is so, after it was run."""
    one = case(recurrence)
    if why := transformation.lacks(one):
        return f"not applicable: {why}"
    try:
        return transformation.check(one) or "yes"
    except AssertionError as error:
        error.add_note(f"{FRAMEWORKS[transformation.framework]}, {transformation.name}, {recurrence.name}")
        raise


def refusal(kind: type[Exception] | tuple[type[Exception], ...], function: Callable[[], Any]) -> str:
    """The error that a call must raise, by its name, up to the first semicolon."""
    try:
        function()
    except kind as error:
        return f"`{type(error).__name__}`: {str(error).splitlines()[0].partition(';')[0]}"
    raise AssertionError("raised nothing")


def must_be_right(recurrence: Recurrence, arguments: dict[str, Any], results: Any) -> None:
    """Within the derived bound of the float64 loop, in the right dtype and shape."""
    fault = wrong(Problem("transformations", "", recurrence, arguments), [np.asarray(result) for result in as_tuple(results)])
    assert fault is None, fault


def within(roundings: float) -> float:
    """The relative error of so many, one after another, in float64 (Higham 2002, lemma 3.1)."""
    return roundings * U64 / (1 - roundings * U64)


def must_agree(found: Any, wanted: Any, order: int = 1, largest: float = 1.0, terms: int = 1) -> None:
    """Two computations of one derivative: of this order, as a sum of so many terms, none of them larger than the largest number or `largest`."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, f"{found.shape}, wanted {wanted.shape}"
    roundings = 2 * OPERATIONS * SHAPE[1] * 3**order + terms
    limit = within(roundings) * terms * max(largest, np.abs(wanted).max(initial=0.0))
    difference = np.abs(found - wanted).max(initial=0.0)
    assert difference <= limit, f"{difference} apart, within {limit}"


def must_agree_by_name(found: dict[str, Any], wanted: dict[str, Any], order: int = 1) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        must_agree(found[name], wanted[name], order)


def must_be_product(found: Any, gradients: dict[str, Any], directions: dict[str, np.ndarray], order: int = 1) -> None:
    """The derivative along `directions` is the sum of the gradients times those."""
    products = np.concatenate([(np.asarray(gradients[name]) * directions[name]).ravel() for name in directions])
    must_agree(found, products.sum(), order, largest=np.abs(products).max(), terms=products.size)


def slope(function: Callable[[dict[str, Any]], Any], arguments: dict[str, Any], name: str, direction: np.ndarray) -> tuple[Any, Any]:
    """The central difference, and how far it may be from the derivative.

    With a step of h = eps^(1/3) the third derivative leaves h^2, and the rounding of values eps/h: both eps^(2/3), times what is added up, a hundred
    numbers of the size of the values at most.
    """
    h = np.finfo(np.float64).eps ** (1 / 3)
    up, down = (function(arguments | {name: arguments[name] + sign * h * direction}) for sign in (1, -1))
    return (up - down) / (2 * h), 100 * h**2 * max(1.0, abs(up))


def must_be_slopes(case: Case, function: Callable[[dict[str, Any]], float], gradients: dict[str, Any]) -> None:
    """The gradients of a function, by central differences along a direction in each argument."""
    for name, direction in case.directions.items():
        wanted, limit = slope(function, case.arguments, name, direction)
        difference = abs(float((np.asarray(gradients[name]) * direction).sum()) - wanted)
        assert difference <= limit, f"by {name}: {difference} apart, within {limit}"


def lacks_parameters(case: Case) -> str | None:
    return None if case.parameter else "no such argument"


def page(cells: dict[Framework, dict[tuple[str, str], str]], versions: dict[str, str]) -> str:
    """`docs/transformations.md` from what `outcome` said of each transformation and operation."""
    parts = [PREFACE.format(versions=_listed(versions))]
    for framework, found in cells.items():
        every = transformations(framework)
        rows = [["transformation", *(f"`{name}`" for name in RECURRENCES)], ["---"] * (1 + len(RECURRENCES))]
        rows += [[name, *(found[name, op] for op in RECURRENCES)] for name in every]
        parts += [f"## {FRAMEWORKS[framework]}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
        parts += ["What is checked:", "\n".join(f"- {one.name}: {one.says}" for one in every.values())]
    return "\n\n".join(parts) + "\n"


PREFACE = """# Transformations

Every operation under what training code does with functions. Each cell was run, on small arrays on a CPU, with every array argument that the operation
can be given at once; "yes" says that the check below its table held. Values are held to the [bound](numerics.md#the-bound), first derivatives and
second ones to differences of the float64 loop and of the first ones, and all other derivatives to those, within counted roundings. Where something can't work,
the cell has the error. For use in training code see [the examples](training.md).

`python -m rlscan.crosscheck transformations` runs all of it and writes this page; the tests run each cell again. It was written with {versions}."""


def _listed(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


def number() -> int:
    """Of cells."""
    return sum(len(transformations(framework)) for framework in FRAMEWORKS) * len(RECURRENCES)


def run_all(progress: Callable[[str], None] = lambda done: None) -> str:
    """The page, from running everything."""
    cells: dict[Framework, dict[tuple[str, str], str]] = {}
    for framework in FRAMEWORKS:
        cells[framework] = {}
        for name, transformation in transformations(framework).items():
            for op, recurrence in RECURRENCES.items():
                progress(f"{name}, {op}")
                cells[framework][name, op] = outcome(transformation, recurrence)
    return page(cells, {FRAMEWORKS[framework]: report.version(framework) for framework in FRAMEWORKS})


def read(text: str) -> tuple[dict[Framework, dict[tuple[str, str], str]], dict[str, str]]:
    """The cells of a page, by framework, transformation and operation, and its versions."""
    cells: dict[Framework, dict[tuple[str, str], str]] = {}
    for framework, title in FRAMEWORKS.items():
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line.startswith("|")]
        if rows:
            ops = [cell.strip("`") for cell in rows[0][1:]]
            cells[framework] = {(row[0], op): cell for row in rows[2:] for op, cell in zip(ops, row[1:], strict=True)}
    versions = re.search(r"It was written with (.*)\.", text)
    return cells, dict(re.findall(r"(\S+) (\d\S*?)(?: and |$)", versions[1])) if versions else {}
