"""What all tests share: where kernels run, the implementations a test is run on, and memory that is never zero by luck."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck import report
from rlscan.crosscheck.backends import Backend, Device, Jax, NumPyLoop, Torch
from rlscan.crosscheck.compare import wrong
from rlscan.crosscheck.scenarios import Problem
from rlscan.crosscheck.suite import Suite
from rlscan.spec import reference
from rlscan.spec.recurrences import Recurrence


def installed(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None


def by_whitening(whitened: np.ndarray, deviation: float) -> float:
    """How many times further than elements are moved whitened ones are: errors are divided by the deviation, and mean and deviation move by no more than
    elements."""
    return float((2 + np.abs(whitened).max()) / deviation)


def find_device() -> Device:
    """Where the tests run: on a GPU if any framework sees one."""
    if installed("torch") and importlib.import_module("torch").cuda.is_available():
        return "cuda"
    if installed("jax") and importlib.import_module("jax").default_backend() == "gpu":
        return "cuda"
    return "cpu"


# JAX would take three quarters of a GPU that torch needs too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
DEVICE = find_device()
if DEVICE == "cpu":
    # Before anything imports triton, which decides by it what `triton.jit` makes.
    os.environ.setdefault("TRITON_INTERPRET", "1")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if installed("jax"):
    # Nothing is promoted by chance, by rlscan or by a test.
    jax = importlib.import_module("jax")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


class Reference(Backend):
    """The public functions on NumPy arrays: the loop in float64, rounded to what a backend would return."""

    name = "reference"

    def run(self, problem: Problem, device: Device, recurrence: Recurrence | None = None) -> tuple[np.ndarray, ...]:
        results = getattr(reference, (recurrence or problem.recurrence).name)(**problem.arguments)
        # A dtype that NumPy has not is computed in float32 by all.
        return tuple(result.astype(problem.call.dtype) for result in (results if isinstance(results, tuple) else (results,)))


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One way to compute all recurrences, on the device of this run."""

    backend: Backend
    device: Device

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def is_interpreted(self) -> bool:
        """Kernels that run step by step in Python, so that little must be enough."""
        return self.device == "cpu" and self.name in ("triton", "pallas")

    def run(self, problem: Problem) -> tuple[np.ndarray, ...]:
        return self.backend.run(problem, self.device)

    def call(self, recurrence: Recurrence, arguments: dict[str, Any]) -> tuple[np.ndarray, ...]:
        return self.run(Problem("test", "", recurrence, arguments))

    def assert_right(self, problem: Problem) -> None:
        """Within the bound of the oracle, in the right dtype and shape, and the arguments are as they were."""
        before = {name: x.copy() for name, x in problem.arguments.items() if isinstance(x, np.ndarray)}
        fault = wrong(problem, self.run(problem))
        assert fault is None, f"{self.name}: {fault}"
        for name, array in before.items():
            np.testing.assert_array_equal(problem.arguments[name], array, err_msg=name, strict=True)


# The crosscheck compares what a caller gets; the tests always run both ways.
VECTORISED: Any = "vectorised"

BACKENDS: dict[str, Backend] = {
    "reference": Reference(),
    "numpy": NumPyLoop(),
    "torch": Torch("torch", VECTORISED),
    "triton": Torch("triton", "kernels"),
    "jax": Jax("jax", VECTORISED),
    "pallas": Jax("pallas", "kernels"),
}
IMPLEMENTATIONS = ("reference", "torch", "triton", "jax", "pallas")


def missing(name: str) -> str | None:
    """Why an implementation can't run here."""
    if name in ("reference", "numpy"):
        return None
    if name == "triton" and not installed("triton"):
        return "triton is not installed"
    return BACKENDS[name].missing(DEVICE)


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """Each implementation in turn, or those that a test names by `parametrize(.., indirect=True)`."""
    if reason := missing(request.param):
        pytest.skip(reason)
    return Implementation(BACKENDS[request.param], "cpu" if request.param in ("reference", "numpy") else DEVICE)


@pytest.fixture(scope="session")
def device() -> Device:
    return DEVICE


def pytest_report_header(config: pytest.Config) -> list[str]:
    names = ("numpy", "torch", "triton", "jax", "jaxlib", "chex", "hypothesis", "gymnasium")
    versions = [f"{name} {importlib.metadata.version(name)}" if installed(name) else f"no {name}" for name in names]
    where = "compiled on a GPU" if DEVICE == "cuda" else "interpreted on the CPU"
    skipped = [f"{name} ({reason})" for name in IMPLEMENTATIONS if (reason := missing(name))]
    lines = [f"rlscan: {', '.join(versions)}", f"rlscan: kernels are {where}"]
    if skipped:
        lines.append(f"rlscan: skipped: {'; '.join(skipped)}")
    if DEVICE == "cpu":
        lines.append("rlscan: skipped: what is marked gpu")
    return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FILE.json", help="write what came of the tests, of which `rlscan-crosscheck report` makes a page")


def pytest_configure(config: pytest.Config) -> None:
    # of several processes, the one that hears of all
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config))


EVERY_S = 5.0
"""A run that is cut short leaves what came of the tests up to then."""


class Recorder:
    """Writes down what came of each test."""

    def __init__(self, config: pytest.Config) -> None:
        self.file = Path(str(config.getoption("--record")))
        command = " ".join(["pytest", *map(str, config.invocation_params.args)])
        kernels = "compiled" if DEVICE == "cuda" else "interpreted"
        made = {"date": report.now(), "device": report.device_name(DEVICE), "versions": report.versions(), "command": command, "kernels": kernels}
        self.suite = Suite(made | {"ended": False})
        self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reason = str(report.longrepr[2]).removeprefix("Skipped: ") if report.skipped and isinstance(report.longrepr, tuple) else ""
        self.suite.add(report.nodeid, report.when or "call", report.outcome, report.duration, reason)
        if time.monotonic() - self.written > EVERY_S:
            self.write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.suite.add(report.nodeid, "call", "failed", 0.0)

    def pytest_sessionfinish(self) -> None:
        self.suite.header["ended"] = True
        self.write()

    def write(self) -> None:
        self.file.write_text(json.dumps(self.suite.as_json(), indent=1) + "\n", encoding="utf-8")
        self.written = time.monotonic()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What measures time runs only where it is asked for: `-m perf`."""
    if "perf" in (config.getoption("markexpr") or ""):
        return
    measures = [item for item in items if item.get_closest_marker("perf")]
    config.hook.pytest_deselected(items=measures)
    items[:] = [item for item in items if item not in set(measures)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if DEVICE == "cpu" and item.get_closest_marker("gpu"):
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory in torch holds NaN, so that an element that no kernel wrote shows. (Pallas' interpreter does the same by itself.)"""
    if not installed("torch"):
        return
    torch = importlib.import_module("torch")
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, _poisoned(getattr(torch.Tensor, name)))


def _poisoned(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def poisoned(*args: Any, **kwargs: Any) -> Any:
        new = create(*args, **kwargs)
        # whoever asks for memory may want its gradient
        filled = new.detach() if new.requires_grad else new
        if new.dtype.is_floating_point:
            filled.fill_(float("nan"))
        elif not new.dtype.is_complex:
            filled.fill_(True if new.dtype.itemsize == 1 else -(10**4))
        return new

    return poisoned


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without three of its costs, which are most of the time of these tests.

    It replaces the functions of `triton.language` anew in every call of a device function, looks dtypes up in a table that it makes
    for each look, and scans element by element; here it does the first once a launch and the second once, and scans whole tiles by
    doubling, in an order like that of a GPU.
    """
    if not INTERPRETED or not installed("triton"):
        yield
        return
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    names = ("_patch_lang", "_get_np_dtype", "GridExecutor.__call__", "ScanOps.generic_scan")
    if not all(functools.reduce(lambda x, name: getattr(x, name, None), path.split("."), interpreter) for path in names):
        yield  # another version, which may be quick or slow
        return
    language = importlib.import_module("triton.language")
    patch_language, execute, dtype_of = interpreter._patch_lang, interpreter.GridExecutor.__call__, interpreter._get_np_dtype
    scalar_dtype_of = functools.cache(dtype_of)
    patched: set[frozenset[str]] = set()

    @functools.cache
    def modules(function: Any) -> frozenset[str]:
        return frozenset(x.__name__ for x in function.__globals__.values() if x is language or x is language.core)

    def patch_language_once(function: Any) -> Any:
        if modules(function) in patched:
            return None
        patched.add(modules(function))
        return patch_language(function)

    def execute_anew(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        # What is infinite or NaN on purpose is no news.
        with np.errstate(all="ignore"):
            return execute(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patch_language_once)
        patch.setattr(interpreter, "_get_np_dtype", lambda type_: (scalar_dtype_of if type(type_) is language.dtype else dtype_of)(type_))
        patch.setattr(interpreter.GridExecutor, "__call__", execute_anew)
        patch.setattr(interpreter.ScanOps, "generic_scan", _scan_by_doubling)
        # every sum of integers would be made twice more, in 64 bits
        patch.setattr(interpreter.interpreter_builder, "options", dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False))
        yield


def _scan_by_doubling(self: Any, operands: tuple[Any, ...]) -> list[Any]:
    arrays, dtypes = [x.handle.data for x in operands], [x.dtype for x in operands]
    place = np.arange(arrays[0].shape[self.axis]).reshape([-1 if axis == self.axis else 1 for axis in range(arrays[0].ndim)])
    reach = 1
    while reach < place.size:
        # Tiles have sizes that are powers of two, so what is rolled over the edge is computed too, and dropped.
        before = [self.to_tensor(np.roll(array, reach, self.axis), dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        after = [self.to_tensor(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        joined = self.combine_fn(*before, *after)
        joined = joined if isinstance(joined, tuple) else (joined,)
        arrays = [np.where(place < reach, array, x.handle.data) for array, x in zip(arrays, joined, strict=True)]
        reach *= 2
    return [self.to_tensor(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
