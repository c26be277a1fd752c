"""Reports of conformance: as plain lines, on a terminal, as a Markdown table, and as one HTML page that needs nothing else."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from rlscan.crosscheck.report import markdown as markdown_table
from rlscan.crosscheck.verdicts import HOLDS, UNSAID, VIOLATED, Report, Verdict, Witness
from rlscan.spec.arguments import ARGUMENTS


def text(report: Report) -> str:
    """All of it, in plain lines."""
    lines = [f"{report.name} as {report.op}, {report.framework}, layout {report.layout}"]
    lines += [f"    {line}" for line in _understood(report)]
    for verdict in report:
        lines.append(f"{verdict.rule:8} {verdict.title:22} {verdict.status}{f': {verdict.note}' if verdict.note else ''}")
        if verdict.witness:
            lines += [f"    {line}" for line in verdict.witness.lines()]
    lines += [f"Fault: {report.name} {fault}." for fault in report.faults]
    return "\n".join([*lines, report.diagnosis])


def show(report: Report) -> None:
    """Print it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(box=box.SIMPLE, title=Text(f"{report.name} as {report.op}, {report.framework}, layout {report.layout}"), title_justify="left")
    for column in ("rule", "", "verdict", "what it says, or why it can't be said"):
        table.add_column(column, overflow="fold")
    for verdict in report:
        style = {HOLDS: "green", VIOLATED: "red", UNSAID: "dim"}[verdict.status]
        table.add_row(*map(Text, (verdict.rule, verdict.title, verdict.status, verdict.note)), style=style)
    # names are somebody's, and no markup
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    for line in _understood(report):
        console.print(f"  {line}", **plain)
    console.print(table)
    for verdict in report:
        if verdict.witness:
            console.print(f"{verdict.rule} is violated on this window:", style="red", **plain)
            for line in verdict.witness.lines():
                console.print(f"  {line}", **plain)
    for fault in report.faults:
        console.print(f"Fault: {report.name} {fault}.", style="red", **plain)
    console.print(report.diagnosis, style="green" if report.conforms else "red", **plain)


def _understood(report: Report) -> list[str]:
    parts = [f"{parameter}: {meaning}" for parameter, meaning in report.reading.items()]
    return [*parts, *(f"gives {output}: {item}" for output, item in report.outputs.items())]


def _rules(reports: Iterable[Report]) -> list[tuple[str, str]]:
    """Those that any of the reports is about, with their titles."""
    return list(dict.fromkeys((verdict.rule, verdict.title) for report in reports for verdict in report))


def _verdict(report: Report, rule: str) -> Verdict | None:
    return next((verdict for verdict in report if verdict.rule == rule), None)


def markdown(reports: Sequence[Report]) -> str:
    """A table of rules by functions, and below it what each function does and the windows that show it."""
    columns = ["rule", *(f"{report.name}, {report.op}" for report in reports)]
    rows = [
        [f"{rule} {title}", *(verdict.status if (verdict := _verdict(report, rule)) else "not looked at" for report in reports)]
        for rule, title in _rules(reports)
    ]
    parts = ["# Conformance", markdown_table(map(_inert, columns), rows)]
    for report in reports:
        parts.append(f"## {_inert(report.name)}")
        parts += [_inert(part) for part in (report.diagnosis, *(f"Fault: {report.name} {fault}." for fault in report.faults))]
        for verdict in report:
            if verdict.witness:
                lines = "\n".join(f"    {line}" for line in verdict.witness.lines())
                parts += [f"{verdict.rule}, {verdict.title}: {_inert(verdict.note)}", lines]
    return "\n\n".join(parts) + "\n"


def _inert(words: str) -> str:
    """Names are somebody's, and no markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]#|" else escape(letter, quote=False) for letter in words)


STYLE = """
:root {
  color-scheme: light dark; --paper: #fff;
  --ink: #1b1b1b; --soft: #666; --line: #ccc; --good: #14732c; --bad: #b3261e; --wrong: #fbdad7; --band: #f4f4f4 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #161616; --ink: #eaeaea; --soft: #a3a3a3; --line: #444; --good: #6fcf87; --bad: #ff8a80; --wrong: #5a1d19; --band: #222 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 110rem; background: var(--paper); color: var(--ink); font: 1rem/1.45 system-ui, sans-serif }
.wide { overflow-x: auto }
table { border-collapse: separate; border-spacing: 0 }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .7rem; text-align: left; vertical-align: top; overflow-wrap: anywhere }
thead th + th, td { min-width: 11rem }
th:first-child { position: sticky; left: 0; background: var(--paper); font-weight: 600; overflow-wrap: normal }
td > p:first-child { margin-top: 0 }
thead small, tbody th small { display: block; font-weight: 400; color: var(--soft) }
.holds { color: var(--good) } .violated { color: var(--bad); font-weight: 600 } .unsaid { color: var(--soft) }
summary { cursor: pointer }
details > :not(summary) { margin: .4rem 0; max-width: 44rem }
svg { display: block; font: 12px ui-monospace, monospace }
svg text { fill: var(--ink) } svg .soft { fill: var(--soft) } svg .band { fill: var(--band) } svg .wrong { fill: var(--wrong) }
svg .terminated { stroke: var(--bad); stroke-width: 3 } svg .truncated { stroke: var(--bad); stroke-width: 3; stroke-dasharray: 5 3 }
svg .starts { stroke: var(--good); stroke-width: 3 } svg .invalid { fill: var(--line); opacity: .45 }
@media (max-width: 40rem) { body { padding: .5rem } th, td { padding: .3rem .4rem } tbody th { max-width: 7rem } }
"""


def page(reports: Sequence[Report], title: str = "Conformance") -> str:
    """One HTML page: rules down, functions across. It loads nothing and runs nothing; a click on what is violated opens the window that shows it."""
    head = "".join(
        f'<th scope="col">{_breakable(report.name)}<small>{escape(f"{report.op}, {report.framework}")}</small><small>{escape(report.layout)}</small></th>'
        for report in reports
    )
    rows = [f'<tr><th scope="row">diagnosis</th>{"".join(_diagnosis(report) for report in reports)}</tr>']
    for rule, name in _rules(reports):
        cells = "".join(f"<td>{_cell(_verdict(report, rule))}</td>" for report in reports)
        rows.append(f'<tr><th scope="row">{escape(rule)}<small>{escape(name)}</small></th>{cells}</tr>')
    body = "\n".join(rows)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Open what is violated to see the smallest window that was found to show it: a solid bar behind a step is a termination, a dashed one a truncation,
a bar before a step the start of a segment; what is shaded is no transition.</p>
<div class="wide">
<table>
<thead><tr><th scope="col">rule</th>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
</body>
</html>
"""


def _diagnosis(report: Report) -> str:
    faults = "".join(f'<p class="violated">{_breakable(f"Fault: {report.name} {fault}.")}</p>' for fault in report.faults)
    understood = "".join(f"<li>{escape(line)}</li>" for line in _understood(report))
    return f"<td><p>{_breakable(report.diagnosis)}</p>{faults}<details><summary>how it was called</summary><ul>{understood}</ul></details></td>"


def _breakable(words: str) -> str:
    """Names of functions are longer than a column is wide; they break behind an underscore, and inside a word only where they must."""
    return re.sub(r"(?<=[^\W_])_", "_<wbr>", escape(words))


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return '<span class="unsaid">not looked at</span>'
    style = {HOLDS: "holds", VIOLATED: "violated", UNSAID: "unsaid"}[verdict.status]
    status = f'<span class="{style}">{escape(verdict.status)}</span>'
    if not verdict.note and verdict.witness is None:
        return status
    shown = drawing(verdict.witness) if verdict.witness else ""
    return f"<details><summary>{status}</summary><p>{escape(verdict.note)}</p>{shown}</details>"


CELL, LETTER, LINE, LEFT = 58, 7.3, 20, 150
"""Widths of a step at least, of a letter and of the names, and the height of a line, in the drawing."""

MOST_STEPS_DRAWN = 12


def drawing(witness: Witness) -> str:
    """The window as a timeline: what each step has, where episodes end, and for each result what came and what is right."""
    notes = [f"raised {witness.raised}"] if witness.raised else []
    notes += [witness.note] if witness.note else []
    steps = max((len(x) for x in (*witness.arguments.values(), *witness.right.values()) if isinstance(x, list)), default=0)
    words = "".join(f"<p>{escape(note)}</p>" for note in notes)
    if not 0 < steps <= MOST_STEPS_DRAWN:
        return f"{words}<pre>{escape(chr(10).join(witness.lines()))}</pre>"
    lanes = [(name, value, None) for name, value in witness.arguments.items() if isinstance(value, list) and not ARGUMENTS[name].flag]
    for name, right in witness.right.items():
        lanes += [(f"{name} came", witness.got[name], right)] if name in witness.got else []
        lanes.append((f"{name} right", right, None))
    rest = [f"{name} = {witness.written(value)}" for name, value in witness.arguments.items() if not isinstance(value, list)]
    height = LINE * (len(lanes) + 1 + len(rest)) + 14
    longest = max(len(witness.written(x)) for _, numbers, _ in lanes for x in numbers)
    cell = max(CELL, round(LETTER * longest) + 16)
    width = LEFT + cell * steps + 10
    parts = list(_shapes(witness, steps, lanes, cell))
    for number, line in enumerate(rest):
        parts.append(_text(4, LINE * (len(lanes) + number + 2), line, "soft"))
    label = escape("; ".join(witness.lines()), quote=True)
    return f'{words}<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}" width="{width}" height="{height}">{"".join(parts)}</svg>'


def _shapes(witness: Witness, steps: int, lanes: Sequence[tuple[str, list[Any], list[Any] | None]], cell: int) -> Iterator[str]:
    bottom = LINE * (len(lanes) + 1) + 4
    for number, (name, numbers, right) in enumerate(lanes):
        top = LINE * (number + 1) + 4
        if number % 2:
            yield f'<rect class="band" x="0" y="{top}" width="{LEFT + cell * steps}" height="{LINE}"/>'
        for t, value in enumerate(numbers):
            if right is not None and witness.written(value) != witness.written(right[t]):
                yield f'<rect class="wrong" x="{LEFT + cell * t}" y="{top}" width="{cell}" height="{LINE}"/>'
        yield _text(4, top + 14, name, "soft")
        for t, value in enumerate(numbers):
            yield _text(LEFT + cell * t + 8, top + 14, witness.written(value))
    for t in range(steps):
        left = LEFT + cell * t
        yield _text(left + 8, 14, f"t={t}", "soft")
        if not witness.arguments.get("valid", [True] * steps)[t]:
            yield f'<rect class="invalid" x="{left}" y="4" width="{cell}" height="{bottom - 4}"><title>no transition</title></rect>'
        for name, place in (("starts", left + 1), ("truncated", left + cell - 5), ("terminated", left + cell - 1)):
            if witness.arguments.get(name, [False] * steps)[t]:
                yield f'<line class="{name}" x1="{place}" x2="{place}" y1="2" y2="{bottom}"><title>{name} at {t}</title></line>'


def _text(x: int, y: int, words: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{style}{chr(34)}" if style else ""}>{escape(words)}</text>'
