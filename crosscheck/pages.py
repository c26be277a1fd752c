"""Pages made from the JSON of a run, of a benchmark or of conformance, and from nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from rlscan.crosscheck import bench, bench_report, conform_page, conformance, report
from rlscan.crosscheck.compare import Report


def rendered(source: Path, name: str) -> dict[str, str]:
    """The page by file name, with its plots (which need matplotlib) or, of conformance, the page in HTML. A `ValueError` where the source is none of these."""
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
    except ValueError:
        data = None
    if not isinstance(data, dict) or (data.get("kind") not in (bench.KIND, conformance.KIND) and "tallies" not in data):
        raise ValueError("it is no JSON of a run, of a benchmark or of conform")
    if data.get("kind") == conformance.KIND:
        reports = [conformance.Report.from_json(each) for each in data["reports"]]
        return {f"{name}.md": conform_page.markdown(reports), f"{name}.html": conform_page.page(reports)}
    if data.get("kind") != bench.KIND:
        return {f"{name}.md": report.page(Report.from_json(data))}
    found = bench.Found.from_json(data)
    plots = bench_report.plots(found, name) if importlib.util.find_spec("matplotlib") else {}
    return {f"{name}.md": bench_report.page(found, name), **plots}
