"""What a benchmark found: as tables on a terminal, and as a page with plots, made from the JSON alone."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rlscan.crosscheck import report
from rlscan.crosscheck.bench import NUMPY, RLSCAN, Found, Judgement, Row, judgements
from rlscan.crosscheck.workloads import TARGETS

DEVICE_COLUMNS = ("operation", "framework", "layout", "rows x T", "options", "µs", "10-90 %", "copy µs", "of copy speed", "by trace µs", "reached")
BASELINE_COLUMNS = ("implementation", "framework", "layout", "rows x T", "µs", "10-90 %", "rlscan µs", "rlscan is faster by")
TARGET_COLUMNS = ("target", "wanted", "rows", "reached", "the worst", "where")
CALL_COLUMNS = ("implementation", "framework", "µs", "10-90 %")
COUNTER_COLUMNS = ("where", "kernel", "µs at base clock", "of DRAM peak", "issue slots used", "instructions per step", "warps per SM", "registers", "waits for")
UPDATE_COLUMNS = ("framework", "network", "update, loop", "update, rlscan", "GAE, loop", "GAE, rlscan", "share of GAE", "gain", "Amdahl")

METHOD = (
    "Times are medians. `of copy speed` is the time of a copy that moves the same bytes, measured in the same run by the same method, over the time of the "
    "operation. `reached` compares it with the [targets](#targets). PyTorch's calls on a GPU are timed by events, and so is their copy: a few µs of each are "
    "the start of a kernel. JAX's and gradients are timed by the device's own trace. Nothing is timed that does not agree with the float64 oracle. "
    "[How it is measured](../benchmarks.md)."
)


COUNTED = (
    "What limits them, by the counters of each of their kernels, read by `ncu` with a cold cache at the base clock. A multiprocessor issues four "
    "instructions a cycle at most, each for 32 lanes, so that a use of the issue slots beyond a half leaves few cycles to hide latency in. "
    "It has room for 64 warps. [What limits which rows](../benchmarks.md#what-limits-a-row)."
)


def show(found: Found) -> None:
    """Print the tables."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200)
    devices = device_rows(found, [row for row in found.rows if row.implementation == RLSCAN])
    console.print(report.table("rlscan", DEVICE_COLUMNS, devices, [cells[-1] == "NO" for cells in devices]))
    tables = [("Baselines", BASELINE_COLUMNS, baseline_rows(found)), ("Host time of a warm call", CALL_COLUMNS, call_rows(found))]
    tables += [("PPO update", UPDATE_COLUMNS, update_rows(found)), ("Targets", TARGET_COLUMNS, target_rows(found))]
    for title, columns, rows in tables:
        if rows:
            console.print(report.table(title, columns, rows, [False] * len(rows)))
    for name, reason in found.skipped.items():
        console.print(f"skipped: {name}: {reason}", highlight=False, markup=False)


def number(x: float | None) -> str:
    """Three digits."""
    if x is None:
        return "-"
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def spread(low: float | None, high: float | None) -> str:
    return f"{number(low)} to {number(high)}"


def mark(judgement: Judgement | None) -> str:
    return "-" if judgement is None else "yes" if judgement.reached else "NO"


def device_rows(found: Found, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    own = {judgement.where: judgement for judgement in judgements(found) if judgement.target is not TARGETS["twins"]}
    return [device_cells(row, own.get(row.key)) for row in rows]


def device_cells(row: Row, judgement: Judgement | None) -> tuple[str, ...]:
    what = (row.op, on(row), row.layout, f"{row.rows} x {row.steps}", row.options or "-")
    if row.us is None:
        return (*what, "-", "-", "-", row.failure or "-", "-", mark(judgement))
    times = (
        number(row.us),
        spread(row.low, row.high),
        number(row.copy_us),
        number(row.fraction),
        number(row.traced),
    )
    return (*what, *times, mark(judgement))


def on(row: Row) -> str:
    return f"{row.framework}, CPU" if row.device == "cpu" else row.framework


def baseline_rows(found: Found) -> list[tuple[str, ...]]:
    return [baseline_cells(row, speedup(found, row)) for row in found.rows if row.implementation != RLSCAN]


def baseline_cells(row: Row, against: tuple[float, float] | None) -> tuple[str, ...]:
    what = (row.implementation, on(row), row.layout, f"{row.rows} x {row.steps}")
    if row.us is None:
        return (*what, "-", "-", "-", row.failure or "-")
    mine, times = (number(against[0]), f"{number(against[1])} x") if against else ("-", "-")
    return (*what, number(row.us), spread(row.low, row.high), mine, times)


def speedup(found: Found, row: Row) -> tuple[float, float] | None:
    """rlscan's time in the same place, and how many times faster it is."""
    # NumPy's loop is what both frameworks are compared with; PyTorch is the nearer one
    framework = "torch" if row.framework == "numpy" else row.framework
    for mine in found.rows:
        if mine.implementation == RLSCAN and mine.framework == framework and mine.place == row.place and mine.method == row.method and mine.us and row.us:
            return mine.us, row.us / mine.us
    return None


def call_rows(found: Found) -> list[tuple[str, ...]]:
    return [(call.implementation, call.framework, number(call.us), spread(call.low, call.high)) for call in found.calls]


def update_rows(found: Found) -> list[tuple[str, ...]]:
    def ms(seconds: float) -> str:
        return f"{number(seconds * 1e3)} ms"

    return [
        (
            update.framework,
            update.network,
            *map(ms, (update.with_loop, update.with_rlscan, update.gae_by_loop, update.gae_by_rlscan)),
            f"{update.share:.1%}",
            f"{update.gain:.2f} x",
            f"{update.predicted:.2f} x",
        )
        for update in found.updates
    ]


def target_rows(found: Found) -> list[tuple[str, ...]]:
    every = judgements(found)
    rows = []
    for target in TARGETS.values():
        mine = [judgement for judgement in every if judgement.target is target]
        if mine:
            worst = max(mine, key=lambda judgement: judgement.distance)
            counts = (str(len(mine)), str(sum(judgement.reached for judgement in mine)))
            measured = "not timed" if worst.measured is None else f"{worst.measured:.2f}" + (" µs beyond" if target.within_us is not None else "")
            rows.append((target.says, target.wanted, *counts, measured, worst.where))
    return rows


def page(found: Found, name: str) -> str:
    """A Markdown page, whose plots are `name` with an ending."""
    made = found.header
    versions = made["versions"].items()
    lines = [f"# Benchmark on {made['device']}", f"{made['date']}; driver {made['driver']}; {made['cpu']}. `{made['command']}`.", METHOD]
    if targets := target_rows(found):
        lines += ["## Targets", report.markdown(TARGET_COLUMNS, targets), *_misses(found)]
    plots = {ending: f"![{title}]({name}-{ending}.svg)" for ending, (title, _) in plotted(found).items()}
    if "roofline" in plots:
        lines += ["## Fraction of copy speed", plots["roofline"]]
    for group in dict.fromkeys(row.group for row in found.rows if row.implementation == RLSCAN):
        rows = [row for row in found.rows if row.group == group and row.implementation == RLSCAN]
        times = {row.timed for row in rows if row.timed}
        timed = [f"Timed {min(times)} to {max(times)}."] if times else []
        lines += [f"### {group}", *timed, report.markdown(DEVICE_COLUMNS, device_rows(found, rows))]
    if baselines := baseline_rows(found):
        lines += ["## Baselines", *([plots["baselines"]] if "baselines" in plots else []), report.markdown(BASELINE_COLUMNS, baselines)]
    if found.calls:
        lines += ["## Host time of a warm call", f"gae, {found.calls[0].rows} x {found.calls[0].steps}.", *([plots["calls"]] if "calls" in plots else [])]
        lines += [report.markdown(CALL_COLUMNS, call_rows(found))]
    if found.updates:
        lines += ["## PPO update", f"{found.updates[0].sizes}; the environment costs nothing.", report.markdown(UPDATE_COLUMNS, update_rows(found))]
    if found.skipped:
        lines += ["## Skipped", "\n".join(f"- {what}: {reason}" for what, reason in found.skipped.items())]
    lines += ["## Versions", report.markdown(("package", "version"), versions)]
    return "\n\n".join(lines) + "\n"


def _misses(found: Found) -> list[str]:
    missed = [judgement for judgement in judgements(found) if not judgement.reached]
    if not missed:
        return ["Every row reached its target."]
    rows = [(judgement.where, judgement.target.wanted, "not timed" if judgement.measured is None else f"{judgement.measured:.3f}") for judgement in missed]
    lines = [f"### Not reached: {len(missed)} rows", report.markdown(("where", "wanted", "measured"), rows)]
    return lines + ([COUNTED, report.markdown(COUNTER_COLUMNS, counter_rows(found))] if found.counters else [])


def counter_rows(found: Found) -> list[tuple[str, ...]]:
    return [
        (
            one.where.removeprefix(f"{RLSCAN} "),
            one.kernel,
            number(one.us),
            f"{one.dram:.0%}",
            f"{one.issue:.0%}",
            number(one.instructions),
            number(one.warps),
            str(one.registers),
            one.waits,
        )
        for one in found.counters
    ]


def plotted(found: Found) -> dict[str, tuple[str, Any]]:
    """What there is to plot: by the file's ending its title, and the function that draws it."""
    plots: dict[str, tuple[str, Any]] = {}
    if any(row.implementation == RLSCAN and row.fraction and row.device != "cpu" for row in found.rows):
        plots["roofline"] = ("Fraction of copy speed by size", _roofline)
    if any(row.implementation != RLSCAN and speedup(found, row) for row in found.rows):
        plots["baselines"] = ("Time of baselines over that of rlscan", _speedups)
    if found.calls:
        plots["calls"] = ("Host time of a warm call", _calls)
    return plots


def plots(found: Found, name: str) -> dict[str, str]:
    """The SVG files beside the page. The same JSON gives the same bytes, with one release of matplotlib."""
    return {f"{name}-{ending}.svg": _svg(draw, found) for ending, (_, draw) in plotted(found).items()}


def _svg(draw: Any, found: Found) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # text as text and not as shapes of a font; ids from a fixed salt instead of a random one
    with mpl.rc_context({"svg.hashsalt": "rlscan", "svg.fonttype": "none", "font.size": 9}):
        figure, file = Figure(layout="constrained"), io.StringIO()
        draw(figure, found)
        figure.savefig(file, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _roofline(figure: Any, found: Found) -> None:
    rows = [row for row in found.rows if row.implementation == RLSCAN and row.fraction and row.device != "cpu"]
    frameworks, layouts = _unique(row.framework for row in rows), _unique(row.layout for row in rows)
    figure.set_size_inches(4.5 * len(layouts), 3.2 * len(frameworks) + 0.6)
    panels = figure.subplots(len(frameworks), len(layouts), sharex=True, sharey=True, squeeze=False)
    operations = _unique(row.op for row in rows)
    for framework, line in zip(frameworks, panels, strict=True):
        for layout, panel in zip(layouts, line, strict=True):
            panel.set_title(f"{framework}, {layout}-major")
            for color, op in enumerate(operations):
                mine = [row for row in rows if (row.framework, row.layout, row.op) == (framework, layout, op)]
                panel.scatter([row.size for row in mine], [row.fraction for row in mine], s=14, color=f"C{color}", label=op)
            panel.axhline(1.0, color="grey", linewidth=0.8)
            panel.set_xscale("log")
            panel.set_ylim(bottom=0)
            panel.set_xlabel("bytes read and written")
            panel.set_ylabel("of copy speed")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


def _speedups(figure: Any, found: Found) -> None:
    rows = [(row, against[1]) for row in found.rows if row.implementation != RLSCAN and (against := speedup(found, row))]
    figure.set_size_inches(8, 0.28 * len(rows) + 1)
    panel = figure.subplots()
    panel.barh(
        [f"{row.implementation}, {on(row)}, {row.rows} x {row.steps}" for row, _ in rows],
        [times for _, times in rows],
        color=["C7" if row.implementation == NUMPY else "C0" for row, _ in rows],
    )
    panel.axvline(1.0, color="grey", linewidth=0.8)
    panel.set_xscale("log")
    panel.invert_yaxis()
    panel.set_xlabel("time over that of rlscan")


def _calls(figure: Any, found: Found) -> None:
    figure.set_size_inches(6, 0.4 * len(found.calls) + 1)
    panel = figure.subplots()
    panel.barh([f"{call.implementation}, {call.framework}" for call in found.calls], [call.us for call in found.calls])
    panel.invert_yaxis()
    panel.set_xlabel("µs of host time")


def _unique(values: Iterable[str]) -> Sequence[str]:
    return list(dict.fromkeys(values))
