"""The record of a run of the tests, and its page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rlscan.crosscheck import pages
from rlscan.crosscheck.suite import Suite

HEADER = {"date": "2026-01-01", "device": "a GPU", "versions": {"torch": "2.6"}, "command": "pytest", "kernels": "compiled"}


def test_each_test_counts_once():
    suite = Suite(HEADER)
    for test, *phases in (
        ("tests/test_a.py::passes", ("setup", "passed"), ("call", "passed"), ("teardown", "passed")),
        ("tests/test_a.py::fails", ("setup", "passed"), ("call", "failed"), ("teardown", "failed")),
        ("tests/test_a.py::is_skipped", ("setup", "skipped"), ("teardown", "passed")),
        ("tests/test_b.py::is_skipped_inside", ("setup", "passed"), ("call", "skipped"), ("teardown", "passed")),
        ("tests/test_b.py::fails_before", ("setup", "failed"), ("teardown", "passed")),
        ("tests/test_b.py::fails_after", ("setup", "passed"), ("call", "passed"), ("teardown", "failed")),
    ):
        for phase, outcome in phases:
            suite.add(test, phase, outcome, 0.5, "no | GPU" if outcome == "skipped" else "")
    assert suite.files["tests/test_a.py"] == {"passed": 1, "failed": 1, "skipped": 1, "seconds": 4.0}
    assert suite.files["tests/test_b.py"] == {"passed": 0, "failed": 2, "skipped": 1, "seconds": 4.0}
    assert suite.failures == ["tests/test_a.py::fails", "tests/test_b.py::fails_before", "tests/test_b.py::fails_after"]
    assert suite.reasons == {"no | GPU": 2}
    assert Suite.from_json(json.loads(json.dumps(suite.as_json()))) == suite


def test_a_run_is_recorded_in_all_its_processes(tmp_path):
    """Of tests that pass, fail, are skipped, and of a file that can't be collected."""
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    body = (
        "import pytest\n\n\ndef test_right():\n    pass\n\n\ndef test_wrong():\n    raise ValueError\n\n\ndef test_not_here():\n    pytest.skip('no reason')\n"
    )
    (tmp_path / "test_some.py").write_text(body, encoding="utf-8")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--record", "record.json"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    suite = Suite.from_json(json.loads((tmp_path / "record.json").read_text(encoding="utf-8")))
    assert {outcome: suite.files["test_some.py"][outcome] for outcome in ("passed", "failed", "skipped")} == {"passed": 1, "failed": 1, "skipped": 1}
    assert suite.failures == ["test_broken.py", "test_some.py::test_wrong"]
    assert suite.reasons == {"no reason": 1}
    (page,) = pages.rendered(tmp_path / "record.json", "record").values()
    assert "1 tests passed, 2 failed, 1 were skipped" in page
    assert "- `test_some.py::test_wrong`" in page
    assert "| 1 | no reason |" in page
    assert "cut short" not in page


def test_a_run_that_is_cut_short_leaves_what_came_of_the_tests_that_had_ended(tmp_path):
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8").replace("EVERY_S = 5.0", "EVERY_S = 0.0")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_some.py").write_text("import os\n\n\ndef test_right():\n    pass\n\n\ndef test_last():\n    os._exit(3)\n", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--record", "record.json"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 3
    (page,) = pages.rendered(tmp_path / "record.json", "record").values()
    assert "1 tests passed, 0 failed, 0 were skipped" in page
    assert "The run was cut short" in page
