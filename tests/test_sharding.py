"""Rows spread over devices: each computes its own, and asks no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("processes", [2, 4])
def test_dtensors(processes, tmp_path):
    """What each process checks is in `ranks.py`."""
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    program, environment = Path(__file__).with_name("ranks.py"), os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-P", str(program)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(processes), str(tmp_path / "store")], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in range(processes)
    ]
    try:
        printed = [process.communicate(timeout=300)[0].decode() for process in ranks]
        assert [process.returncode for process in ranks] == [0] * processes, "\n".join(printed)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
