"""The conformance vectors: current, right, of the declared form, and enough to tell every mistake from what is right and from each other."""

import functools
import itertools
import json
import math
import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rlscan.crosscheck import rational, vectors
from rlscan.crosscheck.__main__ import main
from rlscan.crosscheck.draw import defaults, held
from rlscan.crosscheck.mutants import mutants
from rlscan.crosscheck.scenarios import Problem
from rlscan.spec.arguments import ARGUMENTS
from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.reference import NumPyArrays
from rlscan.spec.rules import RULES
from rlscan.spec.steps import Steps

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/vectors.md"
EXAMPLE = ROOT / "examples/conformance.cpp"

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)

# What a recurrence reads for the same thing alone can't be told apart: Retrace asks of a truncation only whether the episode ended.
THE_SAME = {"retrace": {"truncation does not cut", "truncation is ignored"}}


@functools.cache
def stored(name):
    return json.loads((vectors.DATA / f"{name}.json").read_text(encoding="utf-8"))


def of(recurrence):
    return stored(recurrence.name)["vectors"]


def problem_of(vector, dtype="float32"):
    """The call that a vector describes."""
    arguments = {"time_axis": 0 if vector["layout"] == "time" else -1} | vector["parameters"]
    for name, array in vector["arguments"].items():
        numbers = np.array([float(x) for x in array["data"]]).reshape(array["shape"])
        arguments[name] = numbers.astype("float32") if ARGUMENTS[name].flag else held(numbers, dtype)
    recurrence = RECURRENCES[vector["op"]]
    known = {name: x for name, x in arguments.items() if name in recurrence.argument_names}
    return Problem("vectors", vector["id"], recurrence, known, dtype)


def differences(outputs, results, dtype):
    """Where results are not what the vector says."""
    for (name, output), result in zip(outputs.items(), results, strict=True):
        bounds = output["bound"][dtype] if "bound" in output else itertools.repeat(0.0)
        for place, (x, wanted, bound) in enumerate(zip(result.ravel().tolist(), map(float, output["float64"]), bounds, strict=False)):
            if x != wanted and not (math.isnan(x) and math.isnan(wanted)) and not abs(x - wanted) <= bound:
                yield f"{name}[{place}] is {x}, wanted {wanted} within {bound}"


def beyond(outputs, expected):
    """Whether faulty outputs can be told from the expected ones in float32."""
    for name, output in outputs.items():
        sides = [side.get("bound", {}).get("float32", itertools.repeat(0.0)) for side in (output, expected[name])]
        for x, y, *bounds in zip(map(float, output["float64"]), map(float, expected[name]["float64"]), *sides, strict=False):
            if x != y and not (math.isnan(x) and math.isnan(y)) and not abs(x - y) <= sum(bounds):
                return True
    return False


@pytest.mark.slow
def test_files_are_current(tmp_path):
    assert vectors.outdated(vectors.DATA) == []
    assert {path.name for path in vectors.DATA.iterdir()} == set(vectors.files())
    assert main(["vectors", "--to", str(tmp_path)]) == 0
    assert main(["vectors", "--check", "--to", str(tmp_path)]) == 0
    (tmp_path / "gae.json").write_text((tmp_path / "gae.json").read_text().replace("9", "8", 1))
    (tmp_path / "schema.json").unlink()
    assert vectors.outdated(tmp_path) == ["schema.json", "gae.json"]
    assert main(["vectors", "--check", "--to", str(tmp_path)]) == 1
    assert main(["vectors", "--to", str(tmp_path / "none")]) == 2


def test_they_are_small():
    assert sum(path.stat().st_size for path in vectors.DATA.iterdir()) < 1_000_000


@each_recurrence
def test_the_schema_holds(recurrence):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((vectors.DATA / vectors.SCHEMA).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(stored(recurrence.name))
    first = of(recurrence)[0]
    argument, output = next(iter(first["arguments"])), next(iter(first["expected"]))
    wrong = [
        first | {"op": "gea"},
        first | {"more": 1},
        first | {"rules": ["B13"]},
        first | {"arguments": {argument: {"shape": [1], "data": ["nan"]}}},
        first | {"arguments": {"reward": first["arguments"][argument]}},
        first | {"expected": {output: {"shape": [1], "float64": [0.5], "exact": ["0.5"]}}},
        first | {"expected": {output: {"shape": [1], "float64": [0.5]}}},
        {name: value for name, value in first.items() if name != "faulty"},
    ]
    for vector in wrong:
        assert not validator.is_valid({"format": vectors.FORMAT, "vectors": [vector]}), vector
    assert validator.is_valid({"format": vectors.FORMAT, "vectors": [first]})
    assert not validator.is_valid({"format": vectors.FORMAT + 1, "vectors": [first]})


def test_names_are_the_only_ones():
    every = [vector for recurrence in RECURRENCES.values() for vector in of(recurrence)]
    assert len({vector["id"] for vector in every}) == len(every)
    # more elements than 31 bits count are nothing to write down
    assert {rule for vector in every for rule in vector["rules"]} == set(RULES) - {"B12"}


@each_recurrence
def test_shapes_and_fractions(recurrence):
    for vector in of(recurrence):
        for array in vector["arguments"].values():
            assert len(array["data"]) == math.prod(array["shape"])
        assert tuple(vector["expected"]) == recurrence.output_names
        assert len({"exact" in output for output in vector["expected"].values()}) == 1
        for output in vector["expected"].values():
            assert len(output["float64"]) == math.prod(output["shape"])
            for x, fraction in zip(output["float64"], output.get("exact", output["float64"]), strict=True):
                assert x == fraction or Fraction(x) == Fraction(fraction), vector["id"]


@each_recurrence
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("implementation", ["reference", "numpy", "torch"], indirect=True)
def test_implementations_conform(recurrence, dtype, implementation):
    for vector in of(recurrence):
        assert list(differences(vector["expected"], implementation.run(problem_of(vector, dtype)), dtype)) == [], vector["id"]


@each_recurrence
@pytest.mark.parametrize("implementation", ["jax"], indirect=True)
def test_jax_conforms(recurrence, implementation):
    """On the first vector of each rule, for each is compiled."""
    for vector in of(recurrence):
        if vector["id"].endswith("/0"):
            assert list(differences(vector["expected"], implementation.run(problem_of(vector)), "float32")) == [], vector["id"]


@each_recurrence
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(recurrence, dtype):
    """Every number that is given is one of half precision, and results are not, where that is what is to be seen (B11)."""
    finer = False
    for vector in of(recurrence):
        given = [x for x in problem_of(vector, "float64").arguments.values() if isinstance(x, np.ndarray)]
        assert all(np.array_equal(held(x, dtype), x, equal_nan=True) for x in given), vector["id"]
        if "/B11/" in vector["id"]:
            results = [np.array(output["float64"], float) for output in vector["expected"].values()]
            finer |= any(not np.array_equal(held(x, dtype), x) for x in results)
    assert finer


@each_recurrence
def test_float32_holds_all_that_is_formed(recurrence):
    """In any order of evaluation: each sum of terms is a multiple of the finest of them, and less than 2^24 times it."""
    for vector in of(recurrence):
        if any("bound" in output for output in vector["expected"].values()):
            continue
        call = problem_of(vector).call
        with np.errstate(all="ignore"):
            taps = Steps(call, rational.RationalArrays())
            pairs = list(zip(*taps.coefficients(), strict=True))
        finest, largest = np.ones(call.row_shape, int), np.abs(numbers(taps.seed(), 0))
        given = max((abs(float(x)) for array in vector["arguments"].values() for x in array["data"] if math.isfinite(float(x))), default=0)
        for addend, factor in reversed(pairs) if call.backward else pairs:
            finest = np.maximum(denominators(addend), denominators(factor) * finest)
            largest = np.abs(numbers(addend, 0)) + np.abs(numbers(factor, 0)) * largest
            assert np.all(finest * largest < 2**24), vector["id"]
            if recurrence.outputs:
                # a state and three arguments, times a multiple of a quarter up to 1 and a multiple of a half up to 2
                assert np.all(4 * 2 * finest * 2 * (largest + 3 * given) < 2**24), vector["id"]


def numbers(array, otherwise):
    """Fractions as floating numbers, and another number for what is not finite."""
    return np.reshape([float(x.value) if isinstance(x.value, Fraction) else otherwise for x in np.ravel(array)], np.shape(array))


def denominators(array):
    return np.reshape([x.value.denominator if isinstance(x.value, Fraction) else 1 for x in np.ravel(array)], np.shape(array)).astype(int)


@each_recurrence
def test_every_vector_shows_its_rule(recurrence):
    broken = {mutant.mutation.rule for mutant in mutants(recurrence)}
    for vector in of(recurrence):
        rule = vector["id"].split("/")[1]
        assert rule in (*vector["rules"], "formula")
        if rule == "B9":
            assert any("NaN" in output["float64"] for output in vector["expected"].values()), vector["id"]
        elif rule in broken - {"formula"}:
            assert any(fault["rule"] == rule for fault in vector["faulty"]), vector["id"]


@each_recurrence
def test_every_mistake_is_told(recurrence):
    """From what is right, and from all others."""
    signatures = {}
    for name in (mutant.mutation.name for mutant in mutants(recurrence)):
        outputs = [next((fault["outputs"] for fault in vector["faulty"] if fault["variant"] == name), None) for vector in of(recurrence)]
        assert any(found is not None and beyond(found, vector["expected"]) for found, vector in zip(outputs, of(recurrence), strict=True)), name
        signatures.setdefault(json.dumps(outputs), set()).add(name)
    assert [names for names in signatures.values() if len(names) > 1] == [THE_SAME[name] for name in THE_SAME if name == recurrence.name]
    listed = {(fault["variant"], fault["rule"]) for vector in of(recurrence) for fault in vector["faulty"]}
    assert listed == {(mutant.mutation.name, mutant.mutation.rule) for mutant in mutants(recurrence)}


def test_fractions_meet_everything_else():
    """Numbers of 60 digits that float64 would round, and NaN and infinity by its rules."""
    third = rational.Rational(Fraction(1, 3))
    assert (1.0 - third).value == Fraction(2, 3)
    assert (third * 0.5 + third).value == Fraction(1, 2)
    assert math.isnan((third * math.nan).value)
    assert math.isnan((rational.Rational(0) * math.inf).value)
    assert (third < math.inf) is True
    assert (third == math.nan) is False
    assert rational.Rational(0).exp().value == 1
    assert rational.Rational(-math.inf).exp().value == 0
    assert float(rational.Rational(1).exp().value) == math.e


def test_a_call_that_float64_rounds_is_exact():
    tenth = np.array([0.1, 0.1, 0.1])
    arguments = defaults(RECURRENCES["affine_scan"]) | {"addend": tenth, "factor": tenth}
    call = check(RECURRENCES["affine_scan"], arguments, NumPyArrays())
    (y,) = rational.loop(call)
    x = Fraction(0.1)
    assert [state.value for state in y] == [x, x + x**2, x + x**2 + x**3]


def compiled(folder, *options):
    compiler = next((path for name in ("g++", "c++", "clang++") if (path := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = folder / "conformance"
    subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", *options, str(EXAMPLE), "-o", str(program)], check=True)
    files = sorted(str(path) for path in vectors.DATA.iterdir() if path.name != vectors.SCHEMA)
    return subprocess.run([str(program), *files], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("real", ["float", "double"])
def test_the_example_in_cpp_is_right(real, tmp_path):
    done = compiled(tmp_path, f"-DREAL={real}")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[:-1] == [f"pass {vector['id']}" for vector in stored("gae")["vectors"]]
    assert lines[-1] == f"0 of {len(lines) - 1} failed"
    assert lines[-1] in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("real", ["float", "double"])
def test_the_example_in_cpp_names_its_mistake(real, tmp_path):
    done = compiled(tmp_path, f"-DREAL={real}", "-DBROKEN")
    assert done.returncode == 1
    mistake = "truncation is taken for termination"
    shown = {vector["id"] for vector in stored("gae")["vectors"] if any(fault["variant"] == mistake for fault in vector["faulty"])}
    assert set(re.findall("^FAIL (.*)$", done.stdout, re.MULTILINE)) == shown
    lines = done.stdout.splitlines()
    assert lines[-1] == f"the mistake: {mistake}"
    assert "\n".join(lines[-2:]) in PAGE.read_text(encoding="utf-8")
