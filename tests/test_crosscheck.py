"""The crosscheck itself: its problems say what the rules say, what is wrong is found, and every mutant is rejected."""

import dataclasses
import importlib.util
import itertools
import json
import re

import numpy as np
import pytest

from rlscan.crosscheck import __main__ as command
from rlscan.crosscheck.backends import BACKENDS, Backend, NumPyLoop, tensor
from rlscan.crosscheck.compare import PAIRS, Report, compare, differing_bits, worst_place, wrong
from rlscan.crosscheck.draw import DTYPES, FLAG_DTYPES, FORMS, draw, held, variants
from rlscan.crosscheck.mutants import MUTATIONS, mutants, rejection
from rlscan.crosscheck.report import page
from rlscan.crosscheck.scenarios import LAYOUTS, SCENARIOS, Extent, Problem, covering, problems, shape_of
from rlscan.spec.arguments import ARGUMENTS
from rlscan.spec.calls import check
from rlscan.spec.coefficients import bootstrap, cut, successor_value
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.reference import NumPyArrays, loop
from rlscan.spec.rules import RULES

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)

QUICK = Extent()


def td_targets(reward, next_value, final_value, terminated, truncated, gamma):
    """An eighth recurrence, which no file of the crosscheck knows."""
    successor = successor_value(next_value, final_value, truncated)
    return reward + bootstrap(gamma, terminated, successor), cut(gamma, gamma == gamma)


TD_ARGUMENTS = ("rewards", "values", "terminated", "truncated", "next_values", "bootstrap_value", "final_values", "autoreset", "valid", "gamma", "time_axis")

TD_TARGETS = Recurrence(
    name="td_targets",
    title="One-step targets.",
    direction="backward",
    coefficients=td_targets,
    arguments=tuple(dataclasses.replace(ARGUMENTS[name], keyword=name not in ("rewards", "values")) for name in TD_ARGUMENTS),
    formula="r_t + [~d_t] g_t N_t",
    source="Sutton & Barto 2018, equation 6.2",
    output_names=("targets",),
    output_says=("r_t + [~d_t] g_t N_t.",),
)


class Faulty(NumPyLoop):
    """A backend in which something happens to the results."""

    name = "faulty"

    def __init__(self, spoil):
        self.spoil = spoil

    def run(self, problem, device, recurrence=None):
        return self.spoil(super().run(problem, device, recurrence))


def first_problem(recurrence=RECURRENCES["gae"], scenario="random"):
    return next(problems(recurrence, QUICK, [scenario]))


def along_time(problem, array):
    return np.moveaxis(array, problem.call.time_axis, 0)


@each_recurrence
def test_what_is_drawn_is_legal_in_every_layout_and_dtype(recurrence):
    combinations = itertools.cycle(itertools.product(LAYOUTS, DTYPES, FLAG_DTYPES))
    for variant, (layout, dtype, flag_dtype) in zip(variants(recurrence, FORMS), combinations, strict=False):
        shape, time_axis = shape_of(layout, 4, 5)
        arguments = draw(recurrence, variant, shape, time_axis, dtype=dtype, flag_dtype=flag_dtype)
        call = check(recurrence, arguments, NumPyArrays())
        assert call.shape == shape
        assert call.dtype == ("float64" if dtype == "float64" else "float32")
        assert set(variant.given) <= set(call.arrays)


def test_an_array_is_the_same_in_every_variant():
    recurrence = RECURRENCES["gae"]
    drawn = [draw(recurrence, variant, (3, 5), seed=4) for variant in variants(recurrence)]
    for one, other in itertools.combinations(drawn, 2):
        for name in one.keys() & other.keys():
            if isinstance(one[name], np.ndarray):
                np.testing.assert_array_equal(one[name], other[name])


def test_bfloat16_is_held_exactly():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numbers = held(np.random.default_rng(0).normal(size=(3, 4)), "bfloat16")
    assert numbers.dtype == np.float32
    np.testing.assert_array_equal(numbers.astype(ml_dtypes.bfloat16).astype(np.float32), numbers)


@each_recurrence
def test_a_covering_has_every_pair_of_choices(recurrence):
    every = variants(recurrence)
    chosen = covering(every)
    assert len(chosen) <= len(every)
    for one, other in itertools.permutations({name for variant in every for name in variant.given}, 2):
        for with_one, with_other in itertools.product((True, False), repeat=2):

            def meets(variant, pair=((one, with_one), (other, with_other))):
                return all((name in variant.given) == given for name, given in pair)

            assert any(map(meets, chosen)) == any(map(meets, every))


@each_recurrence
def test_problems_are_what_the_rules_say(recurrence):
    """The oracle agrees with the loop in the compute dtype, with what is known, and with itself where NaN is planted in unread places."""
    for problem in problems(recurrence, QUICK):
        with np.errstate(all="ignore"):
            assert wrong(problem, loop(problem.call, problem.call.dtype)) is None
            if problem.clean is None:
                continue
            clean_outputs = loop(check(recurrence, problem.clean, NumPyArrays()))
        for clean, oracle in zip(clean_outputs, problem.oracle, strict=True):
            clean, oracle = along_time(problem, clean), along_time(problem, oracle)
            untouched = np.ones(oracle.shape, bool) if problem.untouched is None else np.broadcast_to(problem.untouched, oracle.shape)
            np.testing.assert_array_equal(oracle[untouched], clean[untouched], err_msg=str(problem))
            assert np.isfinite(oracle[untouched]).all(), str(problem)


def test_every_rule_has_problems():
    # B12 needs a GPU and is not among the scenarios of a quick run.
    for rule in RULES.keys() - {"B12"}:
        assert any(True for recurrence in RECURRENCES.values() for _ in problems(recurrence, QUICK, [rule])), rule


def test_every_dtype_and_layout_is_met_in_a_quick_run():
    found = list(problems(RECURRENCES["gae"], QUICK, ["random"]))
    assert {problem.dtype for problem in found} == set(DTYPES)
    assert {(problem.call.time_axis, problem.call.frame_ndim) for problem in found} == {(1, 2), (0, 2), (1, 3)}


def test_problems_are_the_same_each_time():
    for one, other in zip(problems(RECURRENCES["vtrace"], QUICK, ["random", "B5"]), problems(RECURRENCES["vtrace"], QUICK, ["random", "B5"]), strict=True):
        assert str(one) == str(other)
        np.testing.assert_array_equal(one.oracle[0], other.oracle[0])


def test_a_new_recurrence_is_covered_by_being_declared():
    report = compare([TD_TARGETS], [NumPyLoop()], QUICK)
    (tally,) = report.tallies
    assert report.agrees, tally.failures
    assert tally.problems > 50
    names = {mutant.mutation.name for mutant in mutants(TD_TARGETS)}
    assert "the value of a terminal state is read" in names
    for mutant in mutants(TD_TARGETS):
        if mutant.mutation.rule in ("B1", "B2", "B3"):
            assert rejection(mutant, QUICK), str(mutant)


def test_every_rule_is_broken_by_a_mutation():
    assert {f"B{number}" for number in range(1, 10)} <= {mutation.rule for mutation in MUTATIONS}
    used = {mutant.mutation for recurrence in RECURRENCES.values() for mutant in mutants(recurrence)}
    assert used == set(MUTATIONS)


@pytest.mark.parametrize("mutant", [mutant for recurrence in RECURRENCES.values() for mutant in mutants(recurrence)], ids=str)
def test_every_mutant_is_rejected(mutant):
    assert rejection(mutant, QUICK)


def test_the_right_definition_is_not_rejected():
    mutant = dataclasses.replace(mutants(TD_TARGETS)[0], recurrence=TD_TARGETS)
    assert rejection(mutant, QUICK) is None


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda results: results[:1], "gave 1 results, wanted 2"),
        (lambda results: [result.astype(np.float16) for result in results], "advantages is float16"),
        (lambda results: [result[:-1] for result in results], "wanted float32[6, 37]"),
        (lambda results: [result + 1 for result in results], "times the bound; random: "),
        (lambda results: [np.full_like(result, np.nan) for result in results], "nan"),
        (lambda results: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["number", "dtype", "shape", "values", "NaN", "exception"],
)
def test_a_faulty_backend_is_found(spoil, says):
    report = compare([RECURRENCES["gae"]], [Faulty(spoil)], QUICK, scenarios=["random"])
    (tally,) = report.tallies
    assert not report.agrees
    assert tally.failed == tally.problems
    assert says in tally.failures[0]


def test_the_worst_place_is_found():
    problem = first_problem()
    results = [oracle.astype(np.float32) for oracle in problem.oracle]
    results[1][2, 30] += 1
    place = worst_place(problem, results)
    assert (place.output, place.row, place.t) == ("returns", (2,), 30)
    assert place.result == pytest.approx(place.oracle + 1, rel=1e-6)
    assert place.distance > 1


def test_a_known_result_counts_beside_the_oracle():
    problem = dataclasses.replace(first_problem(), known=lambda results: ["differs from what is known"])
    fault = wrong(problem, [oracle.astype(np.float32) for oracle in problem.oracle])
    assert fault is not None
    assert "differs from what is known" in fault


def test_differing_bits():
    one = np.array([1.0, 0.0, np.nan, -1.0, 2.0], np.float32)
    other = np.array([np.nextafter(np.float32(1), np.float32(2)), -0.0, -np.nan, -1.0, 2.0], np.float32)
    assert differing_bits(one, other) == (2, 1.0)
    assert differing_bits(one, one) == (0, 0.0)
    assert differing_bits(one[:0], one[:0]) == (0, 0.0)


@pytest.fixture
def named(monkeypatch):
    """Lets a test put a backend in the place of torch."""

    def put(backend, name):
        backend.name = name
        monkeypatch.setitem(BACKENDS, name, backend)

    return put


def test_backends_are_compared_with_each_other(named):
    named(NumPyLoop(), "torch")
    named(Faulty(lambda results: [np.nextafter(result, result.dtype.type(np.inf)) for result in results]), "jax")
    report = compare([RECURRENCES["affine_scan"]], [BACKENDS["torch"], BACKENDS["jax"]], QUICK, scenarios=["random"])
    (pair,) = report.pairs
    assert (pair.first_backend, pair.second_backend) in PAIRS
    assert pair.differing_bits > 0
    assert pair.ulps == 1
    assert pair.first is not None


def test_report_survives_json():
    report = compare([RECURRENCES["gae"]], [NumPyLoop(), Faulty(lambda results: results[:1])], QUICK, scenarios=["B1"], header=header())
    assert Report.from_json(json.loads(json.dumps(report.as_json()))) == report
    text = page(report)
    assert "| gae | numpy |" in text
    assert RULES["B1"].statement in text
    assert "gave 1 results" in text


def header():
    return {
        "date": "today",
        "device": "a machine",
        "backends": ["numpy"],
        "scenarios": ["B1"],
        "extent": "quick",
        "seed": 0,
        "versions": {"numpy": np.__version__},
    }


def run(*arguments):
    return command.main(["--device", "cpu", *arguments])


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    file, markdown = tmp_path / "out.json", tmp_path / "out.md"
    assert run("--backends", "numpy", "--ops", "gae,affine_scan", "--scenarios", "random,B1", "--json", str(file)) == 0
    printed = capsys.readouterr().out
    assert "gae" in printed
    assert "All agree" in printed
    report = Report.from_json(json.loads(file.read_text()))
    assert report.agrees
    assert report.header["extent"] == "quick"
    assert set(report.header["versions"]) >= {"python", "numpy", "torch", "triton", "jax", "rlscan"}
    assert command.main(["report", str(file), "--to", str(markdown)]) == 0
    assert markdown.read_text() == page(report)


def test_operations_in_processes_of_their_own_give_the_same(tmp_path, capsys):
    reports = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        assert run("--backends", "numpy", "--ops", "gae,affine_scan", "--scenarios", "B5", "--jobs", jobs, "--json", str(file)) == 0
        reports.append(Report.from_json(json.loads(file.read_text())))
    assert reports[0].tallies == reports[1].tallies


def test_nothing_compared_is_no_agreement(capsys):
    report = compare([RECURRENCES["gae"]], [NumPyLoop()], QUICK, scenarios=["B7"], header=header())
    assert [tally.problems for tally in report.tallies] == [0]
    assert not report.agrees
    assert not compare([], [NumPyLoop()], QUICK).agrees
    # with several operations, each must meet something, somewhere
    assert run("--backends", "numpy", "--ops", "gae,affine_scan", "--scenarios", "B7,B10") == 0
    assert "All agree." in capsys.readouterr().out
    assert run("--backends", "numpy", "--ops", "gae,eligibility_traces", "--scenarios", "B7") == 1
    printed = capsys.readouterr().out
    assert "Nothing was compared for gae: the chosen scenarios have no problem for it" in printed
    assert "agree" not in printed


def test_the_limits_stand_below_the_tables(capsys):
    assert run("--backends", "numpy", "--ops", "gae", "--scenarios", "B1") == 0
    assert "at most 1 from the float64 oracle, and at most 2 between two backends" in " ".join(capsys.readouterr().out.split())


def test_a_backend_that_cannot_run_is_not_compared(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match=r"triton can't run on cpu: .*TRITON_INTERPRET=1"):
        compare([RECURRENCES["gae"]], [BACKENDS["triton"]], QUICK)
    with pytest.raises(RuntimeError, match="numpy can't run on cuda: NumPy runs on the CPU"):
        compare([RECURRENCES["gae"]], [NumPyLoop()], QUICK, "cuda")


def test_a_process_that_dies_is_a_failure_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    start = command.subprocess.run

    def dies_with_b1(words, **settings):
        if "B1" in words:
            return command.subprocess.CompletedProcess(words, -9, "", "\n".join([*map(str, range(100)), "CUDA [out] of memory"]))
        return start(words, **settings)

    monkeypatch.setattr(command.subprocess, "run", dies_with_b1)
    file = tmp_path / "out.json"
    assert run("--backends", "numpy", "--ops", "gae", "--scenarios", "B1,B2", "--jobs", "2", "--json", str(file)) == 1
    (tally,) = Report.from_json(json.loads(file.read_text())).tallies
    assert tally.failed == 1
    assert tally.problems > 1
    (failure,) = tally.failures
    assert failure.startswith("gae, B1: the process ended with -9: ")
    assert failure.endswith("\n99\nCUDA [out] of memory")
    assert "\n9\n" not in failure
    printed = capsys.readouterr().out
    assert "CUDA [out] of memory" in printed
    assert "1 problems failed" in printed


def test_a_missing_gymnasium_is_said_at_the_start(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "gymnasium" else found(name, *more))
    assert run("--backends", "numpy", "--ops", "gae") == 1
    assert capsys.readouterr().err == "the scenario rollouts needs gymnasium: pip install 'rlscan[crosscheck]', or choose others by --scenarios\n"
    assert run("--backends", "numpy", "--ops", "gae", "--scenarios", "B1") == 0


def test_a_missing_gpu_is_no_missing_package(monkeypatch, capsys):
    for name in ("torch", "triton", "jax", "pallas"):
        monkeypatch.setattr(BACKENDS[name], "missing", lambda device, name=name: f"{name} sees no CUDA device")
    for arguments in (["--device", "cuda"], ["bench", "--device", "cuda"]):
        assert command.main(arguments) == 1
        said = capsys.readouterr().err
        assert "torch sees no CUDA device" in said
        assert re.search(r"there is nothing to (compare|time) on cuda$", said)
        assert "pip install" not in said


def test_help_shows_the_options_of_the_default_command(capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main(["--help"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    for word in ("bench", "--ops", "--backends", "--scenarios", "--quick", "--full", "--seed", "--jobs", "--json"):
        assert word in printed


def refusal(capsys, *arguments):
    """What a command that is given something it can't take says, with exit code 2."""
    try:
        code = command.main(list(arguments))
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize("before", [["run", "--json"], ["--json"], ["bench", "--json"], ["bench", "--ratios"], ["report", "found.json", "--to"]], ids=" ".join)
def test_where_output_cannot_go_is_said_before_the_work(before, tmp_path, capsys):
    nowhere = tmp_path / "nowhere"
    assert f"{nowhere / 'out'}: there is no folder {nowhere}" in refusal(capsys, *before, str(nowhere / "out"))
    assert f"{tmp_path} can't be written" in refusal(capsys, *before, str(tmp_path))


def test_a_page_is_written_to_the_file_that_is_named_or_to_none(tmp_path, capsys):
    assert "page.txt does not end in .md" in refusal(capsys, "report", "found.json", "--to", str(tmp_path / "page.txt"))
    assert not list(tmp_path.iterdir())


def test_what_is_given_wrongly_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "page.md").write_text("# A page")
    (tmp_path / "other.json").write_text('{"kind": "other"}')
    monkeypatch.chdir(tmp_path)
    assert "can't read nofile.json: " in refusal(capsys, "report", "nofile.json")
    for name in ("page.md", "other.json"):
        assert f"can't read {name}: it is no JSON of a run, of a benchmark, of conform or of the tests" in refusal(capsys, "report", name)
    for option in ([], ["--check"]):
        assert "there is no folder docs: run this in a checkout, or name a file by --to" in refusal(capsys, "docs", *option)
    for seed in ("-1", "1.5", "one"):
        assert f"{seed} is no integer >= 0" in refusal(capsys, "--seed", seed)
    for jobs in ("0", "-2", "two"):
        for sub_command in ([], ["bench"]):
            assert f"{jobs} is no integer >= 1" in refusal(capsys, *sub_command, "--jobs", jobs)


def test_the_command_fails_on_a_disagreement(named, capsys):
    named(Faulty(lambda results: [result + 1 for result in results]), "torch")
    assert run("--backends", "torch", "--ops", "gae", "--scenarios", "B1") == 1
    assert "times the bound" in capsys.readouterr().out


def test_the_command_fails_where_a_backend_is_missing(named, capsys):
    class Missing(Backend):
        framework = "no_such_framework"

    named(Missing(), "jax")
    assert run("--backends", "numpy,jax") == 1
    assert "no_such_framework is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--ops", "gea"], ["--backends", "tensorflow"], ["--scenarios", "B13"], ["--quick", "--full"]])
def test_the_command_says_what_it_does_not_know(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        run(*arguments)
    assert exit_.value.code == 2
    assert "error" in capsys.readouterr().err


def test_docs_are_written_and_checked(tmp_path, capsys):
    file = tmp_path / "recurrences.md"
    assert command.main(["docs", "--check", "--to", str(file)]) == 1
    assert command.main(["docs", "--to", str(file)]) == 0
    assert command.main(["docs", "--check", "--to", str(file)]) == 0
    file.write_text(file.read_text() + "more\n")
    assert command.main(["docs", "--check", "--to", str(file)]) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_strides_of_the_arrays(dtype):
    torch = pytest.importorskip("torch")
    array = held(np.random.default_rng(0).normal(size=(4, 6)), dtype)
    for view in (array, array.T, array[:, ::2], np.broadcast_to(array[:1], array.shape), array[:0], array[1:, 2:3], np.asarray(array[0, 0])):
        moved = tensor(view, "cpu", dtype)
        assert str(moved.dtype) == f"torch.{dtype}"
        np.testing.assert_array_equal(moved.to(torch.float64).numpy(), view)
        if view.size > 1:
            assert moved.stride() == tuple(stride // view.itemsize for stride in view.strides)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_backend_agrees(name):
    pytest.importorskip(name)
    report = compare([RECURRENCES["gae"]], [BACKENDS[name]], QUICK, scenarios=["B1", "B5"])
    assert report.agrees, report.tallies[0].failures


# JAX compiles for a second each time, and one recurrence of each direction shows what there is to see.
@pytest.mark.parametrize(
    ("name", "recurrence"),
    [*(("torch", recurrence) for recurrence in RECURRENCES.values()), ("jax", RECURRENCES["gae"]), ("jax", RECURRENCES["affine_scan"])],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_copies_of_a_row_are_all_looked_at(name, recurrence):
    """What a GPU with much memory does with 2**31 elements, with a few."""
    pytest.importorskip(name)
    backend = BACKENDS[name]
    for problem in problems(recurrence, Extent(full=True), ["B12"]):
        assert problem.copies * problem.call.steps > 2**31
        few = dataclasses.replace(problem, copies=3)
        results, same = backend.run_copies(few, "cpu")
        assert same
        assert wrong(few, results) is None


def test_problems_know_their_call():
    assert isinstance(first_problem(), Problem)
    assert all(scenario.says for scenario in SCENARIOS.values())
