"""What the kernels take on an H200: registers, instructions and memory accesses, read from what Triton compiles.

Whether a kernel can be as fast as memory shows before it runs: nothing is spilled, enough programs fit on a multiprocessor, arrays are moved in
wide pieces, and each element once. Data (`data/kernels.json`) holds what is so today, and `shortfalls` says what breaks these rules. No GPU is
needed.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import importlib.metadata
import json
import math
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlscan.crosscheck.compiled import Build, Layout, Resources, compile_pallas, compile_triton, prepared, resources
from rlscan.crosscheck.workloads import Workload, ways_to_differentiate
from rlscan.spec.calls import Call
from rlscan.spec.recurrences import RECURRENCES

DATA = Path(__file__).parent / "data" / "kernels.json"

# One way to call each, mostly that whose values of the next step are read from `values`.
COMMON = {
    "gae": ("bootstrap_value",),
    "vtrace": ("bootstrap_value",),
    "retrace": ("expected_next_q",),
    "lambda_returns": ("values", "bootstrap_value"),
    "discounted_returns": ("bootstrap_value",),
    "eligibility_traces": (),
    "episodic_prefix_sum": ("terminated",),
    "affine_scan": (),
}
# By what the results are linear in.
LINEAR = {op: ways_to_differentiate(Workload(op, 1, 1))[0] for op in ("gae", "vtrace", "lambda_returns", "eligibility_traces")}
# Of columns so many that they are not split.
WHOLE_BLOCKS: tuple[tuple[Layout, tuple[int, int]], ...] = (("rows", (16384, 512)), ("columns", (65536, 512)))
OTHER_BLOCKS: tuple[tuple[Layout, tuple[int, int]], ...] = (("rows", (16384, 65)), ("columns", (65536, 65)))
EVERY_OPTION = ("truncated", "bootstrap_value", "final_values", "valid")
BUILDS = (
    *(Build(op, COMMON.get(op, ()), layout, shape) for op in RECURRENCES for layout, shape in (*WHOLE_BLOCKS, *OTHER_BLOCKS)),
    # no neighbour is read
    Build("gae", ("next_values",), "rows", (16384, 512)),
    Build("gae", ("next_values",), "columns", (65536, 512)),
    # short rows, several of which share a program
    Build("gae", ("bootstrap_value",), "rows", (16384, 16)),
    Build("vtrace", ("bootstrap_value",), "rows", (16384, 16)),
    # a few long rows, split over programs
    Build("gae", ("bootstrap_value",), "rows", (64, 32768)),
    Build("gae", EVERY_OPTION, "rows", (64, 32768)),
    Build("gae", ("bootstrap_value",), "columns", (64, 32768)),
    Build("gae", ("bootstrap_value",), "columns", (4096, 2048)),
    Build("vtrace", EVERY_OPTION, "columns", (4096, 2048)),
    Build("affine_scan", ("initial",), "rows", (64, 32768)),
    # options
    Build("gae", EVERY_OPTION, "rows", (16384, 512), form="per step"),
    Build("gae", EVERY_OPTION, "columns", (65536, 512), form="per step"),
    Build("vtrace", ("truncated", "bootstrap_value", "autoreset=next_step"), "rows", (16384, 512)),
    Build("retrace", ("next_q_values", "next_policy"), "rows", (16384, 512), actions=4),
    Build("retrace", ("next_q_values", "next_policy"), "columns", (65536, 512), actions=4),
    Build("retrace", ("next_q_values", "next_policy"), "rows", (8192, 128), actions=18),
    Build("retrace", ("next_q_values", "next_policy"), "rows", (256, 8192), actions=4),
    Build("gae", ("bootstrap_value",), "rows", (16384, 512), dtype="bfloat16"),
    Build("vtrace", ("bootstrap_value",), "columns", (4096, 512), dtype="float64"),
    # gradients
    *(Build(op, COMMON[op], layout, shape, wanted=wanted) for op, wanted in LINEAR.items() for layout, shape in WHOLE_BLOCKS),
    Build("vtrace", COMMON["vtrace"], "rows", (16384, 512), wanted=("log_rhos", *LINEAR["vtrace"])),
    Build("gae", COMMON["gae"], "rows", (64, 32768), wanted=LINEAR["gae"]),
    Build("gae", COMMON["gae"], "rows", (16384, 512), wanted=LINEAR["gae"], backend="jax"),
    # the same plans and arithmetic as above, so fewer
    *(Build(op, COMMON[op], layout, shape, backend="jax") for op in ("gae", "vtrace", "retrace", "episodic_prefix_sum") for layout, shape in WHOLE_BLOCKS),
    *(Build(op, COMMON.get(op, ()), "columns", (4096, 2048), backend="jax") for op in ("gae", "lambda_returns", "eligibility_traces", "affine_scan")),
    Build("gae", COMMON["gae"], "columns", (65536, 512), wanted=LINEAR["gae"], backend="jax"),
    Build("gae", ("bootstrap_value",), "rows", (16384, 65), backend="jax"),
    Build("gae", EVERY_OPTION, "rows", (64, 32768), backend="jax"),
    # nothing that is read has an axis of rows
    Build("gae", ("bootstrap_value",), "rows", (1, 262144), backend="jax"),
)


@dataclasses.dataclass(frozen=True)
class Access:
    """How a kernel loads an array, or stores it.

    Attributes:
        widths: bytes that an instruction moves for a thread, and how many such instructions there are.
        repeats: elements that are moved for each element of a tile. Where there is an action axis, for each of them and one action.
    """

    widths: Mapping[int, int]
    repeats: float

    def __str__(self) -> str:
        return f"{self.repeats:.4g} per element: {' + '.join(f'{count} x {width} B' for width, count in sorted(self.widths.items(), reverse=True))}"


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What one kernel of a call takes.

    Attributes:
        name: the pass.
        tile: rows and steps.
        stretch: steps side by side of which only the first needs a load for its neighbour: a tile's, or a position's where each reads that again.
        barriers: of a whole program, in the code.
        loads, stores: by the argument's or the output's name; what passes hand on has the kernel's name for it.
        early: of what passes hand on, what is loaded before the kernel waits for the one before, and all that is stored before that.
    """

    name: str
    tile: tuple[int, int]
    stretch: int
    warps: int
    resources: Resources
    barriers: int
    loads: Mapping[str, Access]
    stores: Mapping[str, Access]
    early: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self.resources),
            "barriers": self.barriers,
            "warps": self.warps,
            "tile": "{} x {}".format(*self.tile),
            "loads": {name: str(access) for name, access in self.loads.items()},
            "stores": {name: str(access) for name, access in self.stores.items()},
        }


@dataclasses.dataclass(frozen=True)
class Measured:
    """The kernels of one build.

    Attributes:
        sizes: bytes of an element of each array that has an element for each step, outputs among them.
        broken: each rule that the build breaks, and by what figure; smaller is better.
    """

    kernels: tuple[Footprint, ...]
    sizes: Mapping[str, int]
    broken: Mapping[str, float]


def measure(build: Build) -> Measured:
    try:
        return _measure(build)
    except Exception as error:
        # as text, for not every error of Triton's finds its way out of a process
        raise RuntimeError(f"{build}: {type(error).__name__}: {error}") from None


def _measure(build: Build) -> Measured:
    call, kernels = (_torch if build.backend == "torch" else _jax)(build)
    frame, recurrence = call.arrays[call.recurrence.frame.name], call.recurrence
    sizes = {name: array.dtype.itemsize for name, array in call.arrays.items() if array.shape == frame.shape}
    sizes |= dict.fromkeys((name for name in recurrence.output_names if name not in recurrence.last_only), np.dtype(call.dtype).itemsize)
    return Measured(kernels, sizes, broken_rules(build, kernels, sizes))


def _torch(build: Build) -> tuple[Call, tuple[Footprint, ...]]:
    call, ready, tensors = prepared(build)
    names = {id(array): name for name, array in call.arrays.items()} | dict(zip(map(id, tensors["outs"]), call.recurrence.output_names, strict=True))
    kernels = []
    for launch in ready.launches:
        compiled = compile_triton(launch, tensors, build.capability)
        rows, positions, steps, turn, reread = (launch.constants[name] for name in ("BLOCK_ROWS", "POSITIONS", "STEPS", "TURN", "REREAD"))
        stretch = steps if reread else positions * steps
        kernels.append(_footprint(launch.constants["PASS"], compiled, (rows, positions * steps), stretch, turn, _labels(launch, tensors, names)))
    return call, tuple(kernels)


def _jax(build: Build) -> tuple[Call, tuple[Footprint, ...]]:
    call, plan, kernels = compile_pallas(build)
    tile, stretch = (plan.rows, plan.block_steps), plan.steps if plan.reread else plan.block_steps
    return call, tuple(_footprint(name, compiled, tile, stretch, plan.turn, labels) for name, compiled, labels in kernels)


def _footprint(name: str, compiled: Any, tile: tuple[int, int], stretch: int, turn: int, labels: tuple[str | None, ...]) -> Footprint:
    widths, elements = _widths(compiled.asm["ptx"], labels), _elements(compiled.asm["ttgir"], labels)
    of_a_turn = math.prod(tile) * turn
    loads, stores = ({name: Access(widths[way][name], elements[way][name] / of_a_turn) for name in sorted(widths[way])} for way in ("load", "store"))
    barriers = len(re.findall(r"\bbar(?:rier)?\.(?:cta\.)?sync", compiled.asm["ptx"]))
    early = _before_the_wait(compiled.asm["ptx"], labels)
    return Footprint(name, tile, stretch, compiled.metadata.num_warps, resources(compiled), barriers, loads, stores, early)


def measure_all(builds: Iterable[Build] = BUILDS, progress: Callable[[str], None] = lambda _: None) -> dict[str, Measured]:
    """By the builds' names."""
    builds, measured = tuple(builds), {}
    # not by forks, which neither torch nor LLVM survives
    with concurrent.futures.ProcessPoolExecutor(min(os.cpu_count() or 1, 8), multiprocessing.get_context("spawn"), _compile_only) as pool:
        for build, found in zip(builds, pool.map(measure, builds), strict=True):
            progress(str(build))
            measured[str(build)] = found
    return measured


def _compile_only() -> None:
    """Before Triton and JAX are imported: the one is to be no interpreter, and the other to leave a GPU alone."""
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["JAX_PLATFORMS"] = "cpu"


# The rules.

# What a multiprocessor of an H200 must have under way: 4.8 TB/s over 132 of them for the 0.8 us that a load takes where memory is busy are 29 KB.
IN_FLIGHT = 29_000
REGISTERS, PROGRAMS, WARPS = 65536, 32, 64  # of a multiprocessor
WIDEST = 8  # bytes of a number


def broken_rules(build: Build, kernels: Sequence[Footprint], sizes: Mapping[str, int]) -> dict[str, float]:
    """What holds for every kernel, whatever Triton's version: the rules that are broken, and by what.

    - Nothing is spilled.
    - A pass that starts while the one before is at work waits for it to end before it reads what that hands on, and before it stores anything.
    - Registers leave room for so many programs that what these load at once keeps memory busy.
    - Shared memory is for what lanes hand to each other, a number at a time, and never for what is loaded.
    - All passes of a call together load each element of an input once, and store each element of an output once. A neighbour's value (that of
      the next step, say) counts as a load, so it has to come from the registers; a tile's outermost step has its neighbour in
      another tile, for which one load for each row of a tile is free, or for each position of a tile where none hands anything to another.
    - Where steps are contiguous, and rows and steps are multiples of 16, whole tiles are moved by instructions that move four elements for a
      thread: 16 bytes of float32, 4 of flags. (Where rows are contiguous, a warp's instruction moves one element of 32 of them.)
    """
    broken: dict[str, float] = {}
    repeats: dict[str, float] = collections.defaultdict(float)
    aligned = all(size % 16 == 0 for size in build.shape)
    for kernel in kernels:
        rows, steps = kernel.tile
        moved = [(way, name, access) for way in ("loads", "stores") for name, access in getattr(kernel, way).items() if name in sizes]
        broken[f"{kernel.name}: bytes spilled"] = kernel.resources.spills
        broken |= dict.fromkeys((f"{kernel.name}: {name} before the pass before has ended" for name in kernel.early), 1)
        most = most_registers(sum(min(1, access.repeats) * sizes[name] for way, name, access in moved if way == "loads") * rows * steps, kernel.warps)
        if kernel.resources.registers > most:
            broken[f"{kernel.name}: registers, of {most}"] = kernel.resources.registers
        exchanged = WIDEST * 32 * kernel.warps
        if kernel.resources.shared > exchanged and build.shape[1] % 16 == 0:
            broken[f"{kernel.name}: bytes of shared memory, of {exchanged}"] = kernel.resources.shared
        narrow = 0
        for way, name, access in moved:
            repeats[f"{way} of {name} per element"] += access.repeats
            wide = sum(count * width for width, count in access.widths.items() if width >= 4 * sizes[name]) * 32 * kernel.warps
            if wide < int(access.repeats) * rows * steps * sizes[name]:
                narrow += sum(count for width, count in access.widths.items() if width < 4 * sizes[name])
        if aligned and build.layout == "rows":
            broken[f"{kernel.name}: narrow loads and stores"] = narrow
    free = 1 + 1 / min(kernel.stretch for kernel in kernels)
    broken |= {what: number for what, number in repeats.items() if number > free}
    return {what: number for what, number in broken.items() if number}


def most_registers(loaded: float, warps: int) -> int:
    """Registers of a thread that leave room for enough programs, each of which loads so many bytes at once."""
    programs = min(math.ceil(IN_FLIGHT / loaded) if loaded else PROGRAMS, PROGRAMS, WARPS // warps)
    # they are handed out to warps, 8 a thread at a time
    return min(255, REGISTERS // (programs * warps * 32) // 8 * 8)


# Reading Triton's intermediate code and PTX.

Tallies = dict[str, dict[str, Any]]

HANDED_ON = ("totals", "nearest_ends", "expectations")
"""From pass to pass, by the names of the kernel's parameters."""


def _labels(launch: Any, tensors: Mapping[str, Any], names: Mapping[int, str]) -> tuple[str | None, ...]:
    """For each parameter of the compiled kernel what it points to, None for a number."""
    labels: list[str | None] = []

    def add(x: Any, name: str) -> None:
        if isinstance(x, tuple):
            for item in x:
                add(item, name)
        else:
            labels.append(names.get(id(x), name) if hasattr(x, "dtype") else None)

    given = {**tensors, **launch.sizes}
    for name in launch.kernel.arg_names:
        if name not in launch.constants:
            add(given[name], name)
    return tuple(labels)


def _widths(ptx: str, labels: tuple[str | None, ...]) -> Tallies:
    """For "load" and "store", for each array: how many instructions move how many bytes of a thread."""
    origins: dict[str, frozenset[str]] = {}
    steps: list[tuple[str, list[str]]] = []
    accesses: list[tuple[str, str, int]] = []
    for instruction, operands in re.findall(r"^\s*(?:@!?%p\d+ )?([a-z][\w.:]*)\s+([^;\n]+);", ptx, re.MULTILINE):
        registers = re.findall(r"%r?[a-z]*\d+", operands)
        if found := re.search(r"_param_(\d+)", operands):
            label = labels[int(found[1])] if int(found[1]) < len(labels) else None
            if label:
                origins[registers[0]] = frozenset({label})
        elif found := re.match(r"(ld|st)\b.*\.global\b.*?(?:\.v(\d))?\.[bfsu](\d+)$", instruction):
            address = re.search(r"\[\s*(%\w+)", operands)
            accesses.append(("load" if found[1] == "ld" else "store", address[1] if address else "", int(found[2] or 1) * int(found[3]) // 8))
        elif registers:
            steps.append((registers[0], registers[1:]))
    before = -1
    while before != (before := sum(map(len, origins.values()))):  # a loop hands values back to its beginning
        for result, operands in steps:
            if found := _union(origins, operands):
                origins[result] = origins.get(result, frozenset()) | found
    tallies: Tallies = {"load": {}, "store": {}}
    for way, address, width in accesses:
        tallies[way].setdefault(_array(origins, address), collections.Counter())[width] += 1
    return tallies


def _before_the_wait(ptx: str, labels: tuple[str | None, ...]) -> tuple[str, ...]:
    before, wait, _ = ptx.partition("griddepcontrol.wait")
    found = _widths(before, labels) if wait else {"load": {}, "store": {}}
    return tuple(sorted({name for name in found["load"] if name in HANDED_ON} | {*found["store"]}))


def _elements(ttgir: str, labels: tuple[str | None, ...]) -> Tallies:
    """For "load" and "store", for each array: elements of it that one turn of the loop over tiles moves, or the kernel if no loop does."""
    header, body = re.search(r"tt\.func public [^\n]*\n", ttgir), ""
    if header:
        body = ttgir[header.end() :]
    parameters = re.findall(r"(%\w+): ", header[0] if header else "")
    origins = {name: frozenset({label}) for name, label in zip(parameters, labels, strict=False) if label}
    # What is open: for each region the tally so far, and that of the branch beside it.
    outside: collections.Counter = collections.Counter()
    in_loops: collections.Counter = collections.Counter()
    regions: list[tuple[str, collections.Counter, collections.Counter]] = []
    for line in map(str.strip, body.splitlines()):
        # a name may come again in another region, with another meaning, but is always defined before it is used
        for result, initial in re.findall(r"(%\w+) = (%\w+)[,)]", line):  # what a loop carries
            origins[result] = _union(origins, [initial])
        if found := re.match(r"(%\w+)(?::\d+)? = \"?([\w.]+)\"? ?(.*)", line):
            opaque = found[2] in ("tt.load", "scf.for", "scf.while", "scf.if")
            origins[found[1]] = frozenset() if opaque else _union(origins, re.findall(r"%\w+", found[3]))
        if found := re.search(r"\btt\.(load|store) (%\w+).* : (?:tensor<([\dx]*)x)?!tt\.ptr", line):
            where = regions[-1][1] if regions else outside
            where[found[1], _array(origins, found[2])] += math.prod(map(int, found[3].split("x"))) if found[3] else 1
        if re.match(r"\}+ (?:else|do) \{", line):
            kind, taken, beside = regions.pop()
            regions.append((kind, collections.Counter(), taken | beside))
        elif line.startswith("}"):
            if not regions:
                break
            kind, taken, beside = regions.pop()
            # of two branches the one that moves more
            total = taken | beside
            into = regions[-1][1] if regions else in_loops if kind in ("scf.for", "scf.while") else outside
            into.update(total)
        elif re.search(r"\{( loc\(.*\))?$", line):
            kind = re.search(r"scf\.\w+", line)
            regions.append((kind[0] if kind else "", collections.Counter(), collections.Counter()))
    tallies: Tallies = {"load": collections.defaultdict(int), "store": collections.defaultdict(int)}
    for way, array in {*outside, *in_loops}:
        tallies[way][array] = in_loops[way, array] or outside[way, array]
    return tallies


def _union(origins: Mapping[str, frozenset[str]], names: Iterable[str]) -> frozenset[str]:
    """The arrays that any of these values is computed from the address of."""
    return frozenset().union(*(origins.get(name, frozenset()) for name in names))


def _array(origins: Mapping[str, frozenset[str]], address: str) -> str:
    return " or ".join(sorted(_union(origins, [address]))) or "?"


# The data.


def as_json(measured: Mapping[str, Measured]) -> dict[str, Any]:
    return {
        "versions": {name: importlib.metadata.version(name) for name in ("triton", *["jax"] * any(name.startswith("jax-") for name in measured))},
        "kernels": {name: {kernel.name: kernel.as_json() for kernel in found.kernels} for name, found in measured.items()},
        "shortfalls": {name: {what: round(number, 4) for what, number in found.broken.items()} for name, found in measured.items() if found.broken},
    }


def comparable(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> bool:
    """Whether a build's kernels were compiled by the same versions; others give other figures."""
    return all(before["versions"].get(package) == now["versions"].get(package) for package in ("triton", "jax")[: 2 if name.startswith("jax-") else 1])


def dumps(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def stored() -> dict[str, Any]:
    return json.loads(DATA.read_text(encoding="utf-8"))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Every number that is not what it was, as a line."""
    old, new = dict(_flat(before)), dict(_flat(now))
    return [f"{name}: {old.get(name, 'nothing')} -> {new.get(name, 'nothing')}" for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def _flat(x: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    if not isinstance(x, Mapping):
        yield name, x
        return
    for key, value in x.items():
        yield from _flat(value, f"{name} / {key}" if name else key)


def worse(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Rules that are broken now and were not, or not so far, as lines. Among other versions, which rules they are is all that is compared."""
    known = before["shortfalls"]
    lines = []
    for name, broken in now["shortfalls"].items():
        for what, number in broken.items():
            most = known.get(name, {}).get(what, 0)
            if number > most and (not most or comparable(before, now, name)):
                lines.append(f"{name} / {what}: {number}, and at most {most} is known")
    return lines
