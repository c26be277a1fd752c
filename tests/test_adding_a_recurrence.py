"""An eighth recurrence, taken from docs/adding_a_recurrence.md as it stands there, on everything that computes recurrences."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck.backends import BACKENDS, NumPyLoop
from rlscan.crosscheck.compare import compare
from rlscan.crosscheck.draw import FORMS, draw, variants
from rlscan.crosscheck.scenarios import Extent, Problem
from rlscan.spec import reference
from rlscan.spec.bound import bound, distance
from rlscan.spec.calls import check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding_a_recurrence.md"

each_backend = pytest.mark.parametrize("implementation", ["numpy", "torch", "triton", "jax", "pallas"], indirect=True)


@pytest.fixture(scope="module")
def code() -> str:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def td0(code: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The first block of the page as a module in a file, where Triton finds its source."""
    path = tmp_path_factory.mktemp("eighth") / "td0.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("td0", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["td0"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["td0"]


def test_it_takes_at_most_forty_lines(code: str):
    assert len([line for line in code.splitlines() if line.strip()]) <= 40


@each_backend
def test_it_is_right_on_every_backend(td0: ModuleType, implementation: Any):
    """Every way to call it, or a few where each is compiled or interpreted anew: with each form of the discount, in each layout."""
    recurrence = td0.TD0_TARGETS
    every = variants(recurrence, FORMS)
    for number, variant in enumerate(every[:: 1 if implementation.name in ("numpy", "torch") else 29]):
        shape, time_axis = [((3, 21), -1), ((21, 3), 0), ((2, 21, 2), 1)][number % 3]
        arguments = draw(recurrence, variant, shape, time_axis, seed=number)
        implementation.assert_right(Problem("eighth", f"{shape}; {variant}", recurrence, arguments))


@each_backend
def test_known_values(td0: ModuleType, implementation: Any):
    """1 + 1/2 * 10 = 6; nothing behind a terminal state; 1 + 1/2 * 4 = 3 where truncated; 1 + 1/4 * 8 = 3 at the window's end."""
    nan = np.nan
    arguments = {
        "rewards": np.ones((1, 4), np.float32),
        "values": np.array([[nan, 10, nan, nan]], np.float32),
        "terminated": np.array([[False, True, False, False]]),
        "truncated": np.array([[False, True, True, False]]),
        "final_values": np.array([[nan, nan, 4, nan]], np.float32),
        "bootstrap_value": np.array([8], np.float32),
        "gamma": np.array([0.5, 0.5, 0.5, 0.25], np.float32),
        "time_axis": -1,
    }
    (targets,) = implementation.call(td0.TD0_TARGETS, arguments)
    np.testing.assert_array_equal(targets, [[6, 1, 3, 3]])


def test_it_is_the_lambda_return_without_lambda(td0: ModuleType):
    """G_t with lam = 0 is r_t + g_t N_t everywhere, so both may differ by their roundings alone."""
    for number, variant in enumerate(variants(td0.TD0_TARGETS, ("per step",))):
        arguments = draw(td0.TD0_TARGETS, variant, (4, 30), seed=number)
        other = reference.lambda_returns(**arguments, lam=0.0)
        (limit,) = bound(check(td0.TD0_TARGETS, arguments, reference.NumPyArrays()))
        assert distance(td0.td0_targets(**arguments), other, limit).max() <= 1


def test_the_crosscheck_takes_it(td0: ModuleType):
    report = compare([td0.TD0_TARGETS], [BACKENDS["numpy"]], Extent())
    assert report.agrees, report.tallies[0].failures
    assert report.tallies[0].problems > 50


def test_the_crosscheck_rejects_a_faulty_one(td0: ModuleType):
    """Bootstraps from a terminal state: neither definition agrees with the other's results."""
    faulty = dataclasses.replace(td0.TD0_TARGETS, coefficients=_without_terminations)

    class Faulty(NumPyLoop):
        def run(self, problem: Problem, device: Any, recurrence: Any = None) -> tuple[np.ndarray, ...]:
            return super().run(problem, device, faulty)

    assert not compare([td0.TD0_TARGETS], [Faulty()], Extent(), scenarios=["random"]).agrees


def _without_terminations(reward, next_value, gamma):
    return reward + gamma * next_value, 0.0 * gamma


def test_it_has_a_signature_a_docstring_and_checks(td0: ModuleType):
    parameters = inspect.signature(td0.td0_targets).parameters
    assert list(parameters)[:3] == ["rewards", "values", "terminated"]
    assert parameters["gamma"].default == 0.99
    assert "y_t = r_t + [~d_t] g_t N_t" in td0.td0_targets.__doc__
    with pytest.raises(ValueError, match="td0_targets: next_values or bootstrap_value must be given"):
        td0.td0_targets(np.ones(3), terminated=np.zeros(3))
