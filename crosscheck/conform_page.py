"""Reports of conformance as text."""

from __future__ import annotations

from rlscan.crosscheck.conformance import Report


def text(report: Report) -> str:
    """All of it, in plain lines."""
    lines = [f"{report.name} as {report.op}, {report.framework}, layout {report.layout}"]
    lines += [f"  {parameter}: {meaning}" for parameter, meaning in report.reading.items()]
    lines += [f"  gives {output}: {item}" for output, item in report.outputs.items()]
    for verdict in report:
        lines.append(f"{verdict.rule:8}{verdict.title:20}{verdict.status}{f': {verdict.note}' if verdict.note else ''}")
        if verdict.witness:
            lines += [f"            {line}" for line in verdict.witness.lines()]
    lines += [f"fault: {fault}" for fault in report.faults]
    return "\n".join([*lines, report.diagnosis])
