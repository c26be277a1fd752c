"""Kernels compiled for GPUs that need not be there. The interpreter runs programs that no compiler takes; and how fast one can be shows here too."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import pytest

from rlscan.spec.plan import plan

pytest.importorskip("torch")
pytest.importorskip("triton")


@dataclasses.dataclass(frozen=True)
class Build:
    """One call whose kernels are compiled.

    Attributes:
        op: the recurrence.
        given: optional arguments that are given, options among them.
        layout: `rows` for contiguous steps, `columns` for contiguous rows.
        shape: rows, steps.
        dtype: of the floating arrays.
        actions: where there is an action axis.
        form: of gamma and lam.
        capability: of the GPU, 90 for an H200.
    """

    op: str
    given: tuple[str, ...] = ()
    layout: str = "rows"
    shape: tuple[int, int] = (1024, 128)
    dtype: str = "float32"
    actions: int = 3
    form: str = "number"
    capability: int = 90

    def __str__(self) -> str:
        parts = [self.op, *self.given, self.layout, f"{self.shape[0]}x{self.shape[1]}", f"sm_{self.capability}"]
        parts += [self.dtype] * (self.dtype != "float32") + [f"A={self.actions}"] * (self.actions != 3) + [self.form] * (self.form != "number")
        return "-".join(parts)


PLAIN = [
    Build("gae", ("next_values",)),
    Build("gae", ("bootstrap_value",), "columns"),
]
EVERY_KERNEL = [
    *PLAIN,
    Build("gae", ("truncated", "final_values", "valid"), form="per step"),
    Build("vtrace", ("truncated", "final_values")),
    Build("vtrace", ("truncated", "autoreset=next_step"), "columns", dtype="bfloat16"),
    Build("retrace", ("truncated", "next_policy"), actions=512),
    Build("retrace", ("truncated", "next_policy", "valid"), "columns", actions=512),
    Build("lambda_returns", ("truncated", "autoreset=next_step", "valid"), dtype="float16"),
    Build("discounted_returns", ("truncated", "next_values"), "columns", dtype="float64", form="per step"),
    Build("eligibility_traces", ("truncated", "initial"), form="per step"),
    Build("episodic_prefix_sum", ("starts", "valid"), "columns"),
    Build("affine_scan", ("initial", "reverse=True"), form="per step"),
]
SPLIT = [Build("gae", ("truncated", "final_values", "valid"), shape=(4, 8192))]
OTHER_GPUS = [
    dataclasses.replace(build, capability=capability)
    for capability in (80, 100)
    for build in (Build("gae", ("truncated", "final_values")), Build("vtrace", ("truncated", "final_values"), "columns"))
]
BUILDS = {str(build): build for build in (*EVERY_KERNEL, *SPLIT, *OTHER_GPUS)}

SCRIPT = """
    import dataclasses, json, sys
    import torch
    from rlscan.crosscheck.backends import tensor
    from rlscan.crosscheck.compiled import compile_triton, resources
    from rlscan.crosscheck.draw import draw, variants
    from rlscan.spec.calls import check
    from rlscan.spec.recurrences import RECURRENCES
    from rlscan.torch_triton.arrays import DTYPES, Tensors
    from rlscan.torch_triton.launch import Prepared

    def launches(build):
        recurrence = RECURRENCES[build["op"]]
        fitting = [
            variant for variant in variants(recurrence, (build["form"],))
            if set(build["given"]) <= {*variant.given, *(f"{name}={value}" for name, value in variant.options)}
        ]
        variant = min(fitting, key=lambda variant: len(variant.given) + len(variant.options))
        rows, steps = build["shape"]
        shape, axis = ((rows, steps), -1) if build["layout"] == "rows" else ((steps, rows), 0)
        arguments = draw(recurrence, variant, shape, axis, dtype=build["dtype"], actions=build["actions"])
        given = {name: tensor(x, "cpu", build["dtype"]) if hasattr(x, "dtype") else x for name, x in arguments.items()}
        call = check(recurrence, given, Tensors())
        prepared = Prepared(call)
        outs = tuple(torch.empty_like(call.arrays[recurrence.frame.name], dtype=DTYPES[call.dtype]) for _ in recurrence.output_names)
        return prepared, prepared.tensors(call.arrays, call.numbers, outs)

    for name, build in json.load(sys.stdin).items():
        kernels = []
        try:
            prepared, tensors = launches(build)
            for launch in prepared.launches:
                compiled = compile_triton(launch, tensors, build["capability"])
                kernels.append({"kernel": launch.kernel.__name__, "pass": launch.constants["PASS"], **dataclasses.asdict(resources(compiled))})
            print(json.dumps([name, kernels]), flush=True)
        except Exception as error:
            cause = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            print(json.dumps([name, f"{error}; {cause}"]), flush=True)
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Everything, compiled by two processes. In this one Triton may be its interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    halves = [dict(list(BUILDS.items())[start::2]) for start in (0, 1)]
    processes = [
        subprocess.Popen([sys.executable, "-P", "-c", textwrap.dedent(SCRIPT)], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in halves
    ]
    for process, half in zip(processes, halves, strict=True):
        assert process.stdin is not None
        json.dump({name: dataclasses.asdict(build) for name, build in half.items()}, process.stdin)
        process.stdin.close()
    results = {}
    for process in processes:
        assert process.stdout is not None
        results |= dict(map(json.loads, process.stdout))
        assert process.wait() == 0
    return results


def kernels_of(compiled: dict, build: Build) -> list[dict]:
    kernels = compiled[str(build)]
    assert isinstance(kernels, list), kernels
    return kernels


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_kernels_compile_and_do_not_spill(compiled, build):
    kernels = kernels_of(compiled, build)
    passes = [kernel["pass"] for kernel in kernels]
    split = plan(build.layout, *build.shape).segments > 1
    assert split or build not in SPLIT
    assert passes == [*["nearest"] * (split and "valid" in build.given), *["totals"] * split, "results"]
    for kernel in kernels:
        assert kernel["kernel"] == f"{build.layout}_kernel"
        assert kernel["spills"] == 0, kernel


@pytest.mark.parametrize("build", PLAIN[:1], ids=str)
def test_aligned_rows_move_16_bytes_at_a_time(compiled, build):
    """Rewards, values and next values in, advantages and returns out; flags are bytes, of which there are not 16 side by side."""
    (kernel,) = kernels_of(compiled, build)
    assert kernel["wide"] >= 5, kernel


def test_every_operation_and_both_kernels_are_compiled():
    from rlscan.spec.recurrences import RECURRENCES

    assert {build.op for build in BUILDS.values()} == set(RECURRENCES)
    assert {build.capability for build in BUILDS.values()} == {80, 90, 100}
    assert {build.layout for build in BUILDS.values()} == {"rows", "columns"}
