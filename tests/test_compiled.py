"""Kernels compiled for GPUs that need not be there. The interpreter runs programs that no compiler takes."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import pytest

from rlscan.crosscheck.compiled import Build
from rlscan.spec.plan import plan

pytest.importorskip("torch")
pytest.importorskip("triton")


EVERY_KERNEL = [
    Build("gae", ("next_values",)),
    Build("gae", ("bootstrap_value",), "columns"),
    Build("gae", ("truncated", "bootstrap_value", "final_values", "valid"), form="per step"),
    Build("vtrace", ("truncated", "bootstrap_value", "final_values")),
    Build("vtrace", ("truncated", "bootstrap_value", "autoreset=next_step"), "columns", dtype="bfloat16"),
    Build("retrace", ("next_q_values", "truncated", "next_policy"), actions=512),
    Build("retrace", ("next_q_values", "truncated", "next_policy", "valid"), "columns", actions=512),
    Build("lambda_returns", ("values", "truncated", "bootstrap_value", "autoreset=next_step", "valid"), dtype="float16"),
    Build("discounted_returns", ("truncated", "next_values"), "columns", dtype="float64", form="per step"),
    Build("eligibility_traces", ("terminated", "truncated", "initial"), form="per step"),
    Build("episodic_prefix_sum", ("starts", "valid"), "columns"),
    Build("affine_scan", ("initial", "reverse=True"), form="per step"),
]
SPLIT = [
    Build("gae", ("truncated", "bootstrap_value", "final_values", "valid"), shape=(4, 8192)),
    Build("gae", ("bootstrap_value",), "columns", shape=(4, 8192)),
    Build("discounted_returns", ("bootstrap_value",), shape=(4, 8192), capability=80),
]
OTHER_GPUS = [
    dataclasses.replace(build, capability=capability)
    for capability in (80, 100)
    for build in (
        Build("gae", ("truncated", "bootstrap_value", "final_values")),
        Build("vtrace", ("truncated", "bootstrap_value", "final_values"), "columns"),
    )
]
BUILDS = {str(build): build for build in (*EVERY_KERNEL, *SPLIT, *OTHER_GPUS)}

SCRIPT = """
    import dataclasses, json, sys
    from rlscan.crosscheck.compiled import Build, compile_triton, prepared, resources

    for name, build in json.load(sys.stdin).items():
        kernels = []
        try:
            _, ready, tensors = prepared(Build(**build))
            for launch in ready.launches:
                compiled = compile_triton(launch, tensors, build["capability"])
                overlap = [compiled.asm["ptx"].count(f"griddepcontrol.{what}") for what in ("launch_dependents", "wait")]
                overlap.append(int(launch.options.get("launch_pdl", False)))
                kernels.append({"pass": launch.constants["PASS"], "overlap": overlap, **dataclasses.asdict(resources(compiled))})
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


# ptxas keeps one number in local memory that it has registers for.
SPILLED = {
    "gae-truncated-bootstrap_value-final_values-valid-rows-4x8192-sm_90": 8,
    "eligibility_traces-columns-65536x512-sm_90": 8,
    "gae-next_values-columns-65536x512-sm_90": 8,
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_kernels_compile_and_do_not_spill(compiled, build):
    kernels = kernels_of(compiled, build)
    passes = [kernel["pass"] for kernel in kernels]
    split = plan(build.layout, *build.shape, reads=1, outputs=1, itemsize=4).segments > 1
    assert split or build not in SPLIT
    assert passes == [*["nearest"] * (split and "valid" in build.given), *["totals"] * split, "results"]
    for kernel in kernels:
        assert kernel["spills"] <= SPILLED.get(str(build), 0), kernel


@pytest.mark.parametrize("build", SPLIT, ids=str)
def test_a_pass_starts_while_the_one_before_is_at_work_and_waits_for_what_that_hands_on(compiled, build):
    kernels = kernels_of(compiled, build)
    lets_the_next_start, waits, starts_early = zip(*[kernel["overlap"] for kernel in kernels], strict=True)
    if build.capability >= 90:
        assert lets_the_next_start == (*[1] * (len(kernels) - 1), 0)
        assert waits == starts_early == (0, *[1] * (len(kernels) - 1))
    else:
        assert not any((*lets_the_next_start, *waits, *starts_early))


def test_every_operation_and_both_layouts_are_compiled():
    from rlscan.spec.recurrences import RECURRENCES

    assert {build.op for build in BUILDS.values()} == set(RECURRENCES)
    assert {build.capability for build in BUILDS.values()} == {80, 90, 100}
    assert {build.layout for build in BUILDS.values()} == {"rows", "columns"}
