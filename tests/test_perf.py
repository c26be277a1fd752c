"""On a GPU: nothing is slower than it was when its ratio to a copy was stored."""

import pytest

from rlscan.crosscheck import ratios
from rlscan.crosscheck.bench import PACKAGES, Bench, Entry
from rlscan.crosscheck.engines import ENGINES
from rlscan.crosscheck.report import device_name

pytestmark = [pytest.mark.gpu, pytest.mark.perf]

ENTRIES = ratios.entries(tuple(PACKAGES))


@pytest.fixture(scope="module")
def bench() -> Bench:
    # one for all, for it keeps the copies' times
    return Bench()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.row().key for entry in ENTRIES])
def test_is_as_fast_as_before(entry: Entry, bench: Bench):
    if reason := ENGINES[entry.framework].missing("cuda"):
        pytest.skip(reason)
    key, stored = entry.row().key, ratios.load().get(device_name("cuda"), {})
    if key not in stored:
        pytest.skip(f"no ratio is stored for this on {device_name('cuda')}: rlscan-crosscheck bench --ratios FILE")
    row = bench.row(entry)
    assert row.failure is None, row.failure
    assert ratios.slower(key, row.fraction, stored) is None
