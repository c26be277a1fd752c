"""Every operation under every transformation: each cell of docs/transformations.md is run again, and the page has them all."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from rlscan.crosscheck import transformations as table
from rlscan.crosscheck.transformations import FRAMEWORKS, Transformation, outcome, transformations
from rlscan.spec.recurrences import RECURRENCES

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "transformations.md").read_text(encoding="utf-8")
CELLS, VERSIONS = table.read(PAGE)

RUN_ANEW = "run `python -m rlscan.crosscheck transformations`"

each_cell = pytest.mark.parametrize(
    ("framework", "name", "op"),
    [pytest.param(framework, name, op, id=f"{framework}-{name.replace('`', '')}-{op}") for framework in CELLS for name, op in CELLS[framework]],
)
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


def needs(framework):
    pytest.importorskip(framework)


# what PyTorch and JAX say while they compile
@pytest.mark.filterwarnings("ignore")
@each_cell
def test_a_cell_is_what_comes_out(framework, name, op):
    needs(framework)
    one = transformations(framework).get(name)
    assert one is not None, f"there is no such transformation; {RUN_ANEW}"
    assert outcome(one, RECURRENCES[op]) == CELLS[framework][name, op], RUN_ANEW


@each_framework
def test_the_page_has_every_transformation_and_operation(framework):
    needs(framework)
    assert list(CELLS[framework]) == [(name, op) for name in transformations(framework) for op in RECURRENCES], RUN_ANEW


@pytest.mark.skipif(any(importlib.util.find_spec(framework) is None for framework in FRAMEWORKS), reason="the page has both frameworks")
def test_the_page_is_written_from_its_cells():
    assert set(VERSIONS) == set(FRAMEWORKS.values())
    assert table.page(CELLS, VERSIONS) == PAGE, RUN_ANEW


def test_what_is_wrong_is_no_cell():
    def wrong(case):
        table.must_be_right(case.recurrence, case.arguments, np.zeros(case.shape))

    with pytest.raises(AssertionError, match="times the bound") as caught:
        outcome(Transformation("zeros", "torch", "", wrong), RECURRENCES["affine_scan"])
    assert caught.value.__notes__ == ["PyTorch, zeros, affine_scan"]


@pytest.mark.parametrize(
    ("found", "wanted"), [(np.ones(3), np.ones(4)), (np.ones(3), np.ones(3) + 1e-9), (np.full(3, np.nan), np.ones(3))], ids=["shape", "number", "nan"]
)
def test_what_is_apart_does_not_agree(found, wanted):
    with pytest.raises(AssertionError):
        table.must_agree(found, wanted)
    table.must_agree(wanted, wanted)


def test_a_wrong_gradient_shows_in_differences():
    one = table.case(RECURRENCES["discounted_returns"])
    with pytest.raises(AssertionError, match="by gamma"):
        table.must_be_slopes(one, one.loss, {name: np.zeros_like(x) for name, x in one.floats.items()})


def test_a_call_that_must_be_refused_and_is_not():
    with pytest.raises(AssertionError, match="raised nothing"):
        table.refusal(TypeError, lambda: None)


def test_a_loop_over_rows_shows():
    jax = pytest.importorskip("jax")
    from rlscan.crosscheck.transformations_of_jax import loops

    rows = jax.numpy.ones((3, 5))
    one_by_one = lambda rows: jax.lax.map(lambda row: jax.lax.scan(lambda c, x: (c + x, c), 0.0, row)[1], rows)  # noqa: E731
    assert sorted(loops(one_by_one, rows)) == [("scan", 3), ("scan", 5)]
    assert sorted(loops(jax.vmap(one_by_one), rows[None])) == [("scan", 3), ("scan", 5)]
    at_once = jax.vmap(lambda row: jax.lax.scan(lambda c, x: (c + x, c), 0.0, row)[1])
    assert sorted(loops(at_once, rows)) == [("scan", 5)]


@pytest.mark.filterwarnings("ignore")
def test_a_loop_of_pytorch_over_rows_is_an_error():
    torch = pytest.importorskip("torch")
    from rlscan.crosscheck.transformations_of_torch import no_loop_over_rows

    row = torch.library.custom_op("rlscan_tests::row", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    with no_loop_over_rows(), pytest.raises(RuntimeError, match="fallback"):
        torch.func.vmap(row)(torch.ones(3, 5))
