"""What a GPU is measured to want is found, written, and followed by both backends."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import pytest

from rlscan.crosscheck import tune
from rlscan.crosscheck.__main__ import main
from rlscan.spec.plan import MEASURED, as_tuning, plan


def test_what_is_faster_is_found():
    def timer(problem, tuning):
        # a GPU that wants long rows in wide programs, and few segments
        return 1 + abs(math.log2(tuning.lanes[0] / 256)) + abs(math.log2(tuning.split / 512)) + abs(math.log2(tuning.lanes[1] / 64))

    found = tune.tuned(timer)
    assert (found.lanes, found.split) == ((256, 64), 512)
    assert found == dataclasses.replace(MEASURED, lanes=(256, 64), split=512)


def test_noise_changes_nothing():
    values = iter(range(10**6))
    assert tune.tuned(lambda problem, tuning: 1 - 0.01 * (next(values) % 2)) == MEASURED


def test_it_is_followed(tmp_path):
    file = tmp_path / "there" / "tuning.json"
    tune.write(file, dataclasses.replace(MEASURED, lanes=(256, 32)), {"device": "some GPU"})
    code = "from rlscan.spec.plan import plan, TUNING; print(plan('rows', 1000, 512, 4, 2, 4).rows, TUNING.lanes[1])"
    for name, environment in (("named", {"RLSCAN_TUNING": str(file)}), ("in the configuration", {"XDG_CONFIG_HOME": str(tmp_path / "home")})):
        if name != "named":
            file = tmp_path / "home" / "rlscan" / "tuning.json"
            tune.write(file, dataclasses.replace(MEASURED, lanes=(256, 32)), {})
        out = subprocess.run([sys.executable, "-c", code], env=_environment() | environment, check=True, capture_output=True, text=True).stdout
        assert out.split() == ["8", "32"], name
    assert plan("rows", 1000, 512, 4, 2, 4).rows == MEASURED.lanes[0] // 32


MISTAKEN = [
    json.dumps({"tuning": dataclasses.asdict(MEASURED) | {name: value}})
    for name, value in {"warps": -1, "lanes": [64, 128, 3], "shortest": True, "narrow": [2048, 3000], "positions": [2, 32], "segments": 1 << 17}.items()
]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"tuning": 3}', '{"tuning": {"lanes": 1}}', *MISTAKEN])
def test_a_file_that_is_none_is_named(tmp_path, text):
    file = tmp_path / "tuning.json"
    file.write_text(text)
    run = subprocess.run([sys.executable, "-c", "import rlscan.spec.plan"], env=_environment() | {"RLSCAN_TUNING": str(file)}, capture_output=True, text=True)
    assert run.returncode, run.stdout
    assert f"ValueError: {file} is no tuning" in run.stderr


def test_numbers_come_back():
    assert as_tuning(json.loads(json.dumps(dataclasses.asdict(MEASURED)))) == MEASURED


def test_without_a_gpu_there_is_nothing_to_measure(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["tune"]) == 1
    assert "no CUDA device" in capsys.readouterr().err


def _environment():
    return {name: value for name, value in os.environ.items() if name not in ("RLSCAN_TUNING", "XDG_CONFIG_HOME")}


def test_where_it_cannot_be_written_is_said_before_it_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tune, "gpu_timer", lambda: None)
    (tmp_path / "file").touch()
    for to in (tmp_path, tmp_path / "file" / "tuning.json"):
        assert main(["tune", "--to", str(to)]) == 2
        assert str(tmp_path) in capsys.readouterr().err
