"""What limits a kernel: hardware counters of the benchmark's rows that missed a target, by NVIDIA's profiler `ncu`.

The profiler runs this module as a program, which calls the operations; one counted launch of each kernel is replayed until all counters are read, with
a cold cache and at the base clock.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlscan.crosscheck.bench import RLSCAN, Counters, Entry, Found, Row, judgements
from rlscan.crosscheck.engines import ENGINES
from rlscan.crosscheck.workloads import BACKWARD, Workload, arguments

WAITED_FOR = {
    "long_scoreboard": "memory",
    "short_scoreboard": "shared memory or a shuffle",
    "barrier": "a barrier",
    "wait": "the instruction before",
    "math_pipe_throttle": "an arithmetic unit",
    "not_selected": "its turn",
    "lg_throttle": "the memory queue",
    "mio_throttle": "the shared-memory queue",
    "no_instruction": "instructions",
    "imc_miss": "constants",
}
"""The profiler's reasons for which a warp issues nothing, and what it waits for."""

KERNELS = "regex:^(scan_kernel|rlscan_)"
"""What kernels of PyTorch and of JAX are called."""

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = {
    "us": "gpu__time_duration.sum",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.per_cycle_active",
    "registers": "launch__registers_per_thread",
    "instructions": "smsp__inst_executed.sum",
}


def missing() -> str | None:
    """Why nothing can be counted."""
    if shutil.which("ncu") is None:
        return "NVIDIA's profiler, ncu, is not on the path"
    return ENGINES["torch"].missing("cuda")


def measured(found: Found) -> list[Counters]:
    """The counters of each kernel of each row on a GPU that missed a target of its own."""
    missed = {judgement.where for judgement in judgements(found) if not judgement.reached}
    # the same row may be in two groups
    rows = list({row.key: row for row in found.rows if row.key in missed and (row.implementation, row.device) == (RLSCAN, "cuda")}.values())
    with tempfile.TemporaryDirectory() as folder:
        wanted, done = Path(folder) / "wanted.json", Path(folder) / "done.json"
        wanted.write_text(json.dumps([(row.framework, dataclasses.asdict(workload_of(row))) for row in rows]), encoding="utf-8")
        command = ["ncu", "--profile-from-start", "off", "--kernel-name", KERNELS, "--csv", "--page", "raw"]
        command += ["--metrics", ",".join([*METRICS.values(), *map(STALLED.format, WAITED_FOR)])]
        flags = ["-P"] if sys.flags.safe_path else []
        run = subprocess.run([*command, sys.executable, *flags, "-m", __name__, str(wanted), str(done)], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"ncu ended with {run.returncode}: {(run.stdout + run.stderr).strip()[-500:]}")
        launches = json.loads(done.read_text(encoding="utf-8"))
    return counted(rows, launches, run.stdout)


def counted(rows: Sequence[Row], launches: Sequence[int], text: str) -> list[Counters]:
    """The profiler's table, whose lines are the launches of the rows, one after another."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    names, units, *table = csv.reader(io.StringIO("\n".join(lines)))
    if len(table) != sum(launches):
        raise ValueError(f"ncu counted {len(table)} launches of {sum(launches)}")
    unit = dict(zip(names, units, strict=True))[METRICS["us"]]
    to_us = {"ns": 1e-3, "us": 1.0, "usecond": 1.0, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3}[unit]
    found, left = [], iter(table)
    for row, count in zip(rows, launches, strict=True):
        for number in range(count):
            line = {name: cell.replace(",", "") for name, cell in zip(names, next(left), strict=True)}
            value = {name: float(line[metric]) for name, metric in METRICS.items()}
            waits = {what: float(line[STALLED.format(reason)]) for reason, what in WAITED_FOR.items()}
            found.append(
                Counters(
                    where=row.key,
                    kernel=f"{number + 1} of {count}",
                    us=round(value["us"] * to_us, 3),
                    dram=round(value["dram"] / 100, 4),
                    issue=round(value["issue"] / 100, 4),
                    warps=round(value["warps"], 2),
                    registers=int(value["registers"]),
                    # a warp's instruction is one of each of its 32 lanes
                    instructions=round(value["instructions"] * 32 / (row.rows * row.steps), 2),
                    waits=max(waits, key=waits.__getitem__),
                )
            )
    return found


def workload_of(row: Row) -> Workload:
    options = [option for option in row.options.split(", ") if option]
    actions, wanted = ([option for option in options if option.startswith(word)] for word in ("A = ", BACKWARD))
    plain = tuple(option for option in options if option not in (*actions, *wanted))
    return Workload(
        row.op,
        row.rows,
        row.steps,
        row.layout,
        plain,
        actions=int(actions[0].removeprefix("A = ")) if actions else 0,
        wanted=tuple(wanted[0].removeprefix(BACKWARD).split()) if wanted else (),
    )


def main(wanted: str, done: str) -> None:
    """What the profiler runs: each workload once to compile it, and once counted."""
    import torch

    launches: list[int] = []
    for framework, made in json.loads(Path(wanted).read_text(encoding="utf-8")):
        workload = Workload(**made | {name: tuple(made[name]) for name in ("options", "wanted")})
        entry, engine = Entry("", workload, framework, "cuda"), ENGINES[framework]("cuda")
        operands = entry.operands({name: engine.place(workload.laid_out(array)) for name, array in arguments(workload).items()})
        function = engine.compiled(entry.function())
        engine.finish(function(operands))
        launches.append((launched_by_jax if framework == "jax" else launched_by_torch)(function, operands))
        torch.cuda.profiler.start()
        engine.finish(function(operands))
        torch.cuda.profiler.stop()
    Path(done).write_text(json.dumps(launches), encoding="utf-8")


def launched_by_torch(function: Any, operands: Mapping[str, Any]) -> int:
    """How many kernels of ours such a call starts."""
    from rlscan.torch_triton import launch

    started: list[launch.Launch] = []
    start = launch.Prepared.start

    def counting(self: launch.Prepared, passed: dict) -> None:
        started.extend(self.launches)
        start(self, passed)

    launch.Prepared.start = counting
    try:
        function(operands)
    finally:
        launch.Prepared.start = start
    return len(started)


def launched_by_jax(function: Any, operands: Mapping[str, Any]) -> int:
    """How many kernels of ours such a call starts; it is jitted."""
    from rlscan.crosscheck.compiled import kernels_within

    return len(kernels_within(function.lower(operands).compiler_ir().operation))


if __name__ == "__main__":
    main(*sys.argv[1:])
