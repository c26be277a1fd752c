"""Functions of other libraries under conformance: what the report says is what comes out, and its pages are made of its JSON."""

import contextlib
import importlib
import json
from pathlib import Path

import pytest

from rlscan.crosscheck.conform_page import page
from rlscan.crosscheck.peers import PEERS
from rlscan.crosscheck.verdicts import Report

REPORT = Path(__file__).resolve().parent.parent / "docs" / "reports" / "2026-11-30-peers.json"
REPORTS = [Report.from_json(each) for each in json.loads(REPORT.read_text(encoding="utf-8"))["reports"]]


def function_of(name: str) -> str:
    return name.rpartition(": ")[2]


def test_every_peer_is_in_the_report():
    assert [function_of(report.name) for report in REPORTS] == [peer.path.partition(":")[2] for peer in PEERS]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.library}-{peer.path.partition(':')[2]}")
def test_the_report_says_what_comes_out(peer):
    """Where the library is installed at the release of the report; formulas always."""
    if reason := peer.missing():
        pytest.skip(reason)
    then = next(report for report in REPORTS if function_of(report.name) == function_of(peer.name) and report.name.startswith(peer.library))
    if then.name != peer.name:
        pytest.skip(f"the report is about {then.name}")
    # the tests' own strictness is not that of whoever calls a library
    with importlib.import_module("jax").numpy_dtype_promotion("standard") if peer.framework == "jax" else contextlib.nullcontext():
        now = peer.report()
    assert (now.diagnosis, now.violated, now.reading, now.outputs) == (then.diagnosis, then.violated, then.reading, then.outputs)


def test_the_page_is_made_of_the_json():
    assert REPORT.with_suffix(".html").read_text(encoding="utf-8") == page(REPORTS)
