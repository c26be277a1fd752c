"""The benchmark: nothing wrong is timed, bytes and targets are counted right, and pages are made from the JSON alone."""

import dataclasses
import functools
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from rlscan.crosscheck import __main__ as command
from rlscan.crosscheck import bench, bench_report, counters, pages, ratios, workloads
from rlscan.crosscheck.baselines import BASELINES, Baseline
from rlscan.crosscheck.bench import NUMPY, PLAIN, RLSCAN, Bench, Entry, Found, HostCall, Row, judged, judgements
from rlscan.crosscheck.engines import ENGINES, Engine, NumPyEngine, Timing, TorchEngine, between
from rlscan.crosscheck.ppo import Sizes, Update, measure
from rlscan.crosscheck.workloads import GIVEN, LAYOUTS, PIECE, TARGETS, Workload
from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.reference import NumPyArrays, loop
from tests.conftest import INTERPRETED

REPORTS = Path(__file__).resolve().parent.parent / "docs" / "reports"

FRAMEWORKS = [pytest.param(name, marks=pytest.mark.skipif(ENGINES[name].missing("cpu") is not None, reason=f"no {name}")) for name in ("torch", "jax")]
needs_torch = pytest.mark.skipif(ENGINES["torch"].missing("cpu") is not None, reason="torch is not installed")

VARIANTS = [
    *(Workload(op, 6, 37, layout) for op in GIVEN for layout in LAYOUTS),
    Workload("retrace", 5, 9, "time", actions=3),
    *(Workload("gae", 5, 9, layout, options) for layout in LAYOUTS for options in workloads.OPTIONS),
]


def made_row(**changes) -> Row:
    row = Row("large", RLSCAN, "torch", "cuda", "gae", "batch", 16384, 512, "", "large batch", size=100, distance=0.5, checked=1.0, method="events")
    return dataclasses.replace(row, **{"us": 10.0, "low": 9.0, "high": 12.0, "copy_us": 9.5, "trace_us": 9.0} | changes)


def test_times_by_other_methods_are_not_compared_with_twins_and_failures_are():
    rows = [made_row(), made_row(framework="jax", us=9.9, method="loop", trace_us=None)]
    found = Found({}, rows, [], [], {})
    assert not [one for one in judgements(found) if one.target is TARGETS["twins"]]
    for changes, ratio in (({"us": 9.9, "method": "trace"}, 1.1), ({"us": None, "method": "", "failure": "RuntimeError: no trace"}, None)):
        rows[1] = made_row(framework="jax", **{"trace_us": None} | changes)
        (judgement,) = [one for one in judgements(found) if one.target is TARGETS["twins"]]
        assert judgement.measured == (ratio and pytest.approx(ratio))
        assert judgement.reached == (ratio is not None)


def made() -> Found:
    """One of everything."""
    header = {"date": "2026-01-01", "device": "a GPU", "driver": "1", "cpu": "c", "command": "rlscan-crosscheck bench", "versions": {"python": "3"}}
    rows = [
        made_row(),
        made_row(rows=4096, us=20.0),
        made_row(framework="jax", us=9.9, method="trace", trace_us=None),
        made_row(target="short", steps=128, copy_us=9.0),
        made_row(op="vtrace", failure="does not agree", us=None, low=None, high=None, copy_us=None),
        made_row(implementation=PLAIN, us=30.0, target=None),
        made_row(device="cpu", target="cpu", rows=8, us=5.0, method="wall"),
        made_row(device="cpu", target=None, rows=8, implementation=NUMPY, framework="numpy", us=10.0, method="wall"),
    ]
    calls = [HostCall(RLSCAN, "torch", "gae", 4096, 128, 12.0, 11.0, 13.0), HostCall(PLAIN, "torch", "gae", 4096, 128, 30.0, 29.0, 33.0)]
    return Found(header, rows, calls, [Update("torch", "cuda", "64 x 64", "sizes", 0.4, 0.3, 0.1, 0.05)], {"TorchRL": "torchrl is not installed"})


@pytest.mark.parametrize("workload", VARIANTS, ids=str)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_kind_of_workload_agrees_and_is_timed(framework, workload):
    row = Bench(quick=True).row(Entry("test", workload, framework, "cpu"))
    assert row.failure is None
    assert row.us is not None
    assert row.us > 0
    assert row.copy_us is not None


def test_every_operation_has_workloads():
    assert set(GIVEN) == set(RECURRENCES)
    for groups in (workloads.groups(), workloads.quick()):
        every = [workload for chosen in groups.values() for workload in chosen]
        assert len(set(every)) == len(every)
        assert all(workload.target in TARGETS for workload in every)


def test_what_is_wrong_is_not_timed(monkeypatch):
    wrong = Baseline("wrong", "numpy", "batch", lambda device: lambda operands: (operands["rewards"], operands["values"]))
    broken = Baseline("broken", "numpy", "batch", lambda device: lambda operands: (1 / 0,))
    for baseline in (wrong, broken):
        monkeypatch.setitem(BASELINES, baseline.name, baseline)
    rows = [Bench(quick=True).row(Entry("test", Workload("gae", 4, 8), "numpy", "cpu", name)) for name in ("wrong", "broken")]
    assert [row.us for row in rows] == [None, None]
    assert re.fullmatch("does not agree with the oracle: .* times the bound", rows[0].failure or "")
    assert rows[1].failure == "ZeroDivisionError: division by zero"


def test_what_takes_too_long_is_stopped(monkeypatch):
    def forever(operands):
        while True:
            pass

    monkeypatch.setattr(bench, "LONGEST_S", 0.1)
    monkeypatch.setitem(BASELINES, "forever", Baseline("forever", "numpy", "batch", lambda device: forever))
    row = Bench(quick=True).row(Entry("test", Workload("gae", 4, 8), "numpy", "cpu", "forever"))
    assert row.failure == "TimeoutError: took longer than 0.1 s"


# Compiling takes long, and Brax's formula is another.
@pytest.mark.parametrize("name", [name for name in BASELINES if not name.startswith(("torch", "TorchRL"))])
def test_baselines_agree(name):
    baseline = BASELINES[name]
    if reason := ENGINES[baseline.framework].missing("cpu"):
        pytest.skip(reason)
    if name == PLAIN and not INTERPRETED:
        pytest.skip("the kernel is interpreted without a GPU")
    row = Bench(quick=True).row(Entry("test", Workload("gae", 3, 37, baseline.layout), baseline.framework, "cpu", name))
    if name == "Brax's formula":
        assert "does not agree" in (row.failure or "")
    else:
        assert row.failure is None


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BASELINES if name.startswith("torch")])
def test_the_compiled_baselines_agree_before_they_are_compiled(name, monkeypatch):
    torch = importlib.import_module("torch")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    row = Bench(quick=True).row(Entry("test", Workload("gae", 3, 37), "torch", "cpu", name))
    assert row.failure is None


class FakeDevice(Engine):
    """Whatever is asked of it is done at once, in 1 µs, and a write in 100."""

    def __init__(self):
        super().__init__("cuda")
        self.done, self.compilations = [], 0

    def started(self, name, us):
        begin = self.done[-1][1] + 1 if self.done else 0.0
        self.done.append((begin, begin + us, name))

    def write(self):
        self.started("write", 100.0)

    def traced(self, work):
        self.done = []
        self.finish(work())
        return self.done

    def finish(self, results):
        if results is not None:
            self.finished = results

    def compiled(self, function):
        self.compilations += 1
        return function

    @functools.cached_property
    def write_us(self):
        return 100.0


def test_a_traced_call_is_behind_writes_that_hide_the_host(monkeypatch):
    monkeypatch.setattr(TorchEngine, "missing", classmethod(lambda cls, device: None))
    engine = FakeDevice()
    monkeypatch.setattr(engine, "host_time", lambda function, operands, batches: Timing(250.0, 0.0, 0.0, "host"))

    def call(operands):
        engine.started("one", 1.0)
        engine.started("other", operands["us"])
        return ("results",)

    timing = engine.trace_time(call, {"us": 5.0})
    # 1 µs, a gap of 1, and 5
    assert (timing.us, timing.method) == (7.0, "trace")
    # three times what the host takes
    assert engine.writes_and_calls(call, {})[0] == 8
    assert engine.finished == ("results",)
    assert engine.compilations == 1


def test_help_names_every_group(capsys):
    with pytest.raises(SystemExit):
        command.main(["bench", "--help"])
    (listed,) = re.findall(r"--groups A,B\s+of (.*?)\s+--device", capsys.readouterr().out, re.DOTALL)
    assert set(re.split(r",\s+", listed)) == set(bench.GROUPS)


@needs_torch
def test_a_repeated_call_is_timed_part_by_part(monkeypatch):
    """As on a GPU, with a kernel that does nothing."""
    import torch

    from rlscan.torch_triton import arrays, launch, repeated

    workload = Workload("gae", 3, 8)
    operands = {name: torch.from_numpy(array) for name, array in workloads.arguments(workload).items()}
    with pytest.raises(RuntimeError, match="is not found again"):
        bench.parts_of_a_call(workload, operands)
    started = []
    monkeypatch.setattr(launch, "_launches", lambda *_: [launch.Launch(None, (1, 1), {}, {}, {})])
    monkeypatch.setattr(launch.Launch, "rest", ("the rest",))
    monkeypatch.setattr(repeated, "_kept", {})
    arguments = {**workload.recurrence.defaults, **workload.numbers(), **operands}
    prepared = launch.Prepared(check(workload.recurrence, arguments, arrays.Tensors()))
    prepared.runners = [lambda *given: started.append(given)]
    repeated.keep(workload.recurrence, arguments, prepared)

    found, outs, nothing = (part(operands) for part in bench.parts_of_a_call(workload, operands).values())
    assert found[0] is prepared
    assert [out.shape for out in outs] == [(3, 8)] * 2
    assert nothing == ()
    (given,) = started
    assert given[-1] == "the rest"
    assert operands["rewards"].data_ptr() in given[0]


@pytest.mark.parametrize(("text", "message"), [("{", "it is no JSON"), ("[]", "has no fractions"), ('{"a GPU": 1}', "has no fractions")])
def test_what_is_to_take_ratios_is_read_before_anything_is_timed(text, message, tmp_path, capsys):
    file = tmp_path / "ratios.json"
    file.write_text(text)
    assert command.main(["bench", "--device", "cpu", "--ratios", str(file)]) == 2
    assert message in capsys.readouterr().err
    assert command.main(["bench", "--device", "cpu", "--ratios", str(file), "--json", str(file)]) == 2
    assert "can't be both" in capsys.readouterr().err
    assert file.read_text() == text


def test_without_pytorch_nothing_is_traced(monkeypatch):
    monkeypatch.setattr(TorchEngine, "missing", classmethod(lambda cls, device: "torch is not installed"))
    with pytest.raises(RuntimeError, match="by PyTorch's profiler, and torch is not installed"):
        FakeDevice().trace_time(lambda operands: (), {})


def test_what_a_write_takes_the_device_is_not_what_the_host_waits_for():
    """Where starting one takes the host longer than it takes the device, a write was taken for none."""
    engine = FakeDevice()
    engine.traced = lambda work: [(0, 5, "other"), (10, 60, "write")]  # type: ignore[method-assign]
    assert engine.writer == ("write", 50)


def test_a_call_lasts_from_its_first_kernel_to_its_last():
    """Gaps between its kernels are in it, what is written before it is not, and one of its kernels may have the name of what writes."""
    first = [(0, 99, "write"), (100, 201, "write"), (205, 207, "one"), (208, 211, "write"), (210, 212, "two")]
    second = [(215, 310, "write"), (311, 412, "write"), (413, 414, "one")]
    assert between(first + second, "write", 100.0, writes=2, calls=2) == pytest.approx([7e-6, 1e-6])


@pytest.mark.parametrize(
    "events",
    [
        [(0, 100, "write"), (101, 102, "one")],
        [(0, 100, "write"), (101, 102, "one"), (103, 203, "write")],
        [(0, 1, "one"), (2, 102, "write"), (103, 104, "one"), (105, 205, "write"), (206, 207, "one")],
        [(0, 100, "write"), (100, 101, "one"), (101, 201, "write"), (201, 202, "one"), (203, 303, "write")],
    ],
)
def test_a_trace_of_something_else_is_no_time(events):
    with pytest.raises(RuntimeError, match=r"ran before|the profiler recorded"):
        between(events, "write", 100.0, writes=1, calls=2)


def test_long_rows_are_cut_so_that_the_oracle_need_not_see_all():
    """What the oracle says of a stretch is what it says of it in the whole row."""
    for op in ("gae", "eligibility_traces", "affine_scan"):
        workload = Workload(op, 2, 2 * PIECE + 30)
        made = workloads.arguments(workload)
        inside, end = workloads.samples(workload)
        assert [len(sample) for sample in (inside, end)] == [4 * PIECE, 60]
        assert workloads.sampled(workload) == 1
        results = loop(check(workload.recurrence, workload.numbers() | made, NumPyArrays()))
        limits = workloads.oracle(workload, made)
        assert workloads.worst(workload, results, limits) == 0
        changed = [result.copy() for result in results]
        changed[0][1, PIECE + 5] += 1
        assert workloads.worst(workload, changed, limits) > 1


def test_a_sample_takes_in_both_ends():
    (sample,) = workloads.samples(Workload("gae", 16384, 512))
    assert (sample.rows[0], sample.rows[-1], len(sample.rows)) == (0, 16383, 512)


def test_bytes_are_counted_once():
    """GAE of 2 x 3: 4 bytes for each reward, value and both results, 1 for each flag, 4 for each row's bootstrap value."""
    workload = Workload("gae", 2, 3)
    assert workloads.bytes_moved(workload, workloads.arguments(workload)) == 6 * (4 + 4 + 1 + 4 + 4) + 2 * 4


def test_bytes_of_gradients_are_what_they_depend_on():
    """Of a scan by its addends: what comes in, the factors, and a gradient; by both, the result that tells the states, and another gradient."""
    by_addend, by_both = (Workload("affine_scan", 2, 3, wanted=wanted) for wanted in (("addend",), ("addend", "factor")))
    assert workloads.bytes_moved(by_addend, workloads.arguments(by_addend)) == 6 * (4 + 4 + 4)
    assert workloads.bytes_moved(by_both, workloads.arguments(by_both)) == 6 * (4 + 4 + 4 + 4 + 4)


def test_of_final_values_the_sectors_count_that_are_read():
    """8 numbers of 4 bytes are a sector of 32. Of 2 x 16 the first row has flags in one sector, the second in both; time-major neighbours are rows."""
    flags = np.zeros((2, 16), bool)
    flags[0, 3] = flags[0, 5] = flags[1, 0] = flags[1, 15] = True
    made = {"truncated": flags, "final_values": np.zeros((2, 16), np.float32)}
    results = 2 * 2 * 16 * 4
    assert workloads.bytes_moved(Workload("gae", 2, 16), made) == results + 32 + 3 * 32
    # step 0 to 3, 4 to 7, 12 to 15
    assert workloads.bytes_moved(Workload("gae", 2, 16, "time"), made) == results + 32 + 3 * 32


def test_timings_are_medians():
    assert Timing.of([1e-6, 2e-6, 3e-6, 4e-6, 100e-6], "wall") == Timing(3.0, 1.4, 61.6, "wall")
    assert NumPyEngine("cpu").host_time(lambda operands: (), {}).method == "host"


def test_targets_are_judged_and_no_miss_is_hidden():
    found = made()
    assert [(judgement.target.name, judgement.reached) for judgement in judgements(found)] == [
        ("large batch", True),  # 9.5 / 10
        ("large batch", False),  # 9.5 / 20
        ("large batch", True),
        ("short", True),  # 1 us beyond
        ("large batch", False),  # not timed
        ("twins", True),  # 9.9 / 9
        ("cpu", True),  # 5 / 10
        ("call", True),  # 12 / 30
    ]
    for missed in (made_row(us=None), made_row(target="short", us=11.1)):
        judgement = judged(missed)
        assert judgement is not None
        assert not judgement.reached
    text = bench_report.page(found, "page")
    assert "Not reached: 2 rows" in text
    assert "does not agree" in text
    assert "torchrl is not installed" in text


def test_the_page_is_made_from_the_json_alone(tmp_path):
    file = tmp_path / "found.json"
    file.write_text(json.dumps(made().as_json()))
    pytest.importorskip("matplotlib")
    first, second = pages.rendered(file, "page"), pages.rendered(file, "page")
    assert first == second
    assert set(first) == {"page.md", "page-roofline.svg", "page-baselines.svg", "page-calls.svg"}
    assert all(f"({name})" in first["page.md"] for name in first if name.endswith(".svg"))
    assert command.main(["report", str(file), "--to", str(tmp_path / "page.md")]) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path != file} == first


@pytest.mark.parametrize("source", sorted(REPORTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_pages_are_current(source):
    """The plots too, where matplotlib is of the release that drew them."""
    for name, text in pages.rendered(source, source.stem).items():
        committed = (REPORTS / name).read_text(encoding="utf-8")
        if name.endswith(".md") or drawn_by(text) == drawn_by(committed):
            assert committed == text, f"run `python -m rlscan.crosscheck report docs/reports/{source.name} --to docs/reports/{source.stem}.md`"


def drawn_by(svg: str) -> list[str]:
    return re.findall(r"Matplotlib v[\d.]+", svg)


def test_matplotlib_is_there_where_plots_are_committed():
    assert importlib.util.find_spec("matplotlib") or not list(REPORTS.glob("*.svg"))


def test_ratios_are_stored_by_device_and_what_is_slower_is_named(tmp_path):
    file = tmp_path / "ratios.json"
    file.write_text('{"another GPU": {"x": 0.5}}')
    ratios.store(made(), file)
    stored = ratios.load(file)
    key = made_row().key
    assert set(stored) == {"another GPU", "a GPU"}
    assert stored["a GPU"][key] == 0.95
    assert all("cpu" not in name for name in stored["a GPU"])
    assert ratios.slower(key, 0.95, stored["a GPU"]) is None
    assert ratios.slower(key, 0.8, stored["a GPU"]) == f"{key}: 0.80 of copy speed, where 0.95 was measured before"


def test_stored_ratios_are_of_rows_that_are_measured():
    for stored in ratios.load().values():
        assert set(stored) & {entry.row().key for entry in ratios.entries(("torch", "jax"))}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_ppo_update(framework):
    update = measure(framework, "cpu", (4,), Sizes(envs=4, steps=6, epochs=1, minibatches=2, observation=3, actions=2))
    assert min(update.with_loop, update.with_rlscan, update.gae_by_loop, update.gae_by_rlscan) > 0


def test_amdahls_law():
    """A quarter of the time, halved: 1 / (3/4 + 1/8) = 8/7."""
    update = Update("torch", "cuda", "64 x 64", "sizes", with_loop=0.4, with_rlscan=0.3, gae_by_loop=0.1, gae_by_rlscan=0.05)
    assert (update.share, update.gain, update.predicted) == pytest.approx((1 / 4, 4 / 3, 8 / 7))


@needs_torch
def test_the_command(tmp_path, capsys):
    file = tmp_path / "found.json"
    arguments = ["bench", "--shapes", "5x8", "--ops", "gae", "--layout", "time", "--backends", "torch", "--device", "cpu", "--json", str(file)]
    assert command.main(arguments) == 0
    found = Found.from_json(json.loads(file.read_text()))
    assert [(row.implementation, row.failure) for row in found.rows] == [(RLSCAN, None), ("eager loop", None), (NUMPY, None)]
    assert str(tmp_path) not in file.read_text()
    assert "of copy speed" in capsys.readouterr().out
    assert command.main([*arguments, "--add"]) == 0
    again = Found.from_json(json.loads(file.read_text()))
    assert again.rows == found.rows
    assert again.header["command"] == f"{found.header['command']}; {found.header['command']}"
    assert command.main([*arguments, "--no-baselines", "--jobs", "2"]) == 0
    assert len(Found.from_json(json.loads(file.read_text())).rows) == 1


def test_only_runs_of_one_place_are_put_together():
    found = made()
    with pytest.raises(ValueError, match="was made with driver 1, and this is 2"):
        found.continued(found.header | {"driver": "2"}, {})


def test_a_wrong_shape_is_an_error(capsys):
    for wrong in ("16384", "4x", "0x5", "4x4x4", "axb"):
        with pytest.raises(SystemExit) as ended:
            command.main(["bench", "--shapes", wrong])
        assert ended.value.code == 2
    assert "rows x steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "4x4", "--groups", "cpu"], "--shapes takes the place of the groups"),
        (["--shapes", "4x4", "--quick"], "--shapes takes the place of the groups"),
        (["--shapes", "4x4,99999999x99999999"], "99999999x99999999 has more than 8589934592 steps, whose arrays no device holds"),
        (["--device", "cpu", "--ratios", "ratios.json"], "this run is on a CPU"),
        (["--add", "--json", "broken.json", "--shapes", "4x4"], "can't add to broken.json: it is no JSON"),
    ],
)
@needs_torch
def test_what_can_t_be_done_is_said_before_anything_is(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    try:
        code = command.main(["bench", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["broken.json"]


def test_counters_of_rows_that_missed():
    """The profiler's table: a line of names, one of units, and one of each launch, between other output."""
    rows = [found_row("gae", 64, 32768, "batch"), found_row("gae", 16384, 512, "time")]
    names = ["ID", *counters.METRICS.values(), *(counters.STALLED.format(reason) for reason in counters.WAITED_FOR)]
    units = ["", *["ns" if name == "us" else "" for name in counters.METRICS], *[""] * len(counters.WAITED_FOR)]

    def line(number, us, instructions, waits):
        values = {"us": us, "dram": "61.5", "issue": "57.25", "warps": "15.98", "registers": "80", "instructions": instructions}
        return [str(number), *(values[name] for name in counters.METRICS), *("2.5" if reason == waits else "1.0" for reason in counters.WAITED_FOR)]

    table = [names, units, line(0, "6,528", "1,605,632", "barrier"), line(1, "13,056", "3,211,264", "wait"), line(2, "46,464", "18,688,000", "long_scoreboard")]
    text = "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in cells) for cells in table) + "\n==PROF== Disconnected\n"
    totals, results, other = counters.counted(rows, [2, 1], text)
    assert (totals.where, totals.kernel, totals.us, totals.instructions, totals.waits) == (rows[0].key, "1 of 2", 6.528, 24.5, "a barrier")
    assert (results.kernel, results.waits) == ("2 of 2", "the instruction before")
    assert (other.where, other.dram, other.issue, other.warps, other.registers) == (rows[1].key, 0.615, 0.5725, 15.98, 80)
    assert other.instructions == round(18688000 * 32 / (16384 * 512), 2)
    with pytest.raises(ValueError, match="3 launches of 2"):
        counters.counted(rows, [1, 1], text)


def found_row(op, rows, steps, layout):
    return bench.Entry("large", workloads.Workload(op, rows, steps, layout), "torch", "cuda").row()


def test_a_row_says_which_workload_it_was_of():
    for workload in (workload for group in workloads.groups().values() for workload in group):
        assert counters.workload_of(bench.Entry("", workload, "torch", "cuda").row()) == dataclasses.replace(workload, target=None)


# the longer row is split, and what its parts come to is found first
KERNELS = pytest.mark.parametrize(("steps", "kernels"), [(512, 1), (2048, 2)])


@KERNELS
@needs_torch
@pytest.mark.skipif(not INTERPRETED, reason="kernels run on a CPU in the interpreter alone")
def test_kernels_that_a_call_of_torch_starts_are_counted(steps, kernels):
    import torch

    from rlscan.torch_triton import run

    workload = Workload("gae", 1, steps)
    operands = {name: torch.from_numpy(array) for name, array in workloads.arguments(workload).items()}
    assert counters.launched_by_torch(lambda operands: run(workload.recurrence, workload.numbers() | operands, method="kernels"), operands) == kernels


@KERNELS
def test_kernels_that_a_call_of_jax_starts_are_counted(steps, kernels):
    jax = pytest.importorskip("jax")

    from rlscan.crosscheck.compiled import lower_for_cuda
    from rlscan.jax_pallas import launch
    from rlscan.jax_pallas.arrays import Arrays

    workload = Workload("gae", 1, steps)
    function = jax.jit(lambda operands: launch.by_kernels(check(workload.recurrence, workload.numbers() | operands, Arrays()), interpret=False))

    class OnAGPU:
        def lower(self, operands):
            return lower_for_cuda(function, operands)

    assert counters.launched_by_jax(OnAGPU(), workloads.arguments(workload)) == kernels


def test_nothing_is_counted_without_a_profiler(monkeypatch, capsys):
    monkeypatch.setattr(counters.shutil, "which", lambda name: None)
    assert command.main(["bench", "--quick", "--counters"]) == 1
    assert "ncu, is not on the path" in capsys.readouterr().err


def test_what_was_timed_in_another_group_is_timed_again(monkeypatch, tmp_path):
    """It is the same, but has another target."""
    workload = Workload("gae", 16384, 128)
    entries = [Entry(group, dataclasses.replace(workload, target=group), "torch", "cpu") for group in ("medium", "short")]
    monkeypatch.setattr(bench.Bench, "row", lambda self, entry: entry.row())
    found = Found({}, rows=[entries[0].row()])
    plan = bench.Plan("cpu", entries, calls=False, updates=(), skipped={})
    for _ in range(2):
        list(bench.run(plan, found, 1, tmp_path, lambda what: None))
        assert [(row.group, row.target) for row in found.rows] == [("medium", "medium"), ("short", "short")]


def test_there_is_a_benchmark_to_add_to(tmp_path, capsys):
    assert command.main(["bench", "--quick", "--add"]) == 2
    assert "--add needs the file" in capsys.readouterr().err
    file = tmp_path / "other.json"
    for other in ('{"header": {}}', "[]"):
        file.write_text(other)
        assert command.main(["bench", "--groups", "cpu", "--json", str(file), "--add"]) == 2
        assert "is no benchmark" in capsys.readouterr().err
