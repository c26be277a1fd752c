"""Rows spread over devices: each computes its own, and asks no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
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


@pytest.mark.slow
def test_arrays_of_jax():
    """What is checked is in `devices.py`."""
    pytest.importorskip("rlscan.jax_pallas._scan_primitive")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-P", str(Path(__file__).with_name("devices.py"))], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
