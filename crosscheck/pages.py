"""Pages made from the JSON of a run, of a benchmark, of conformance or of the tests, and from nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from rlscan.crosscheck import bench, bench_report, conform_page, report, suite, verdicts
from rlscan.crosscheck.compare import Report


def rendered(source: Path, name: str) -> dict[str, str]:
    """The page by file name, with its plots (which need matplotlib) or, of conformance, the page in HTML. A `ValueError` where the source is none of these."""
    try:
        found = _found(json.loads(source.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is no JSON of a run, of a benchmark, of conform or of the tests") from error
    if isinstance(found, list):
        return {f"{name}.md": conform_page.markdown(found), f"{name}.html": conform_page.page(found)}
    if isinstance(found, suite.Suite):
        return {f"{name}.md": suite.page(found)}
    if isinstance(found, Report):
        return {f"{name}.md": report.page(found)}
    plots = bench_report.plots(found, name) if importlib.util.find_spec("matplotlib") else {}
    return {f"{name}.md": bench_report.page(found, name), **plots}


def _found(data: Any) -> list[verdicts.Report] | Report | bench.Found | suite.Suite:
    kind = data.get("kind")
    if kind == verdicts.KIND:
        return [verdicts.Report.from_json(each) for each in data["reports"]]
    if kind == suite.KIND:
        return suite.Suite.from_json(data)
    return bench.Found.from_json(data) if kind == bench.KIND else Report.from_json(data)
