"""The documentation is true: its examples run, its links resolve, its generated parts are current."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from rlscan.crosscheck.migration import table, with_table
from rlscan.spec.docstrings import recurrences_page
from rlscan.spec.stubs import stubs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").rglob("*.md"))
REPORTS = ROOT / "docs" / "reports"

EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)

# What an example may import that is not always installed, and is then no failure.
OPTIONAL = ("torch", "jax", "gymnasium")

each_page = pytest.mark.parametrize("page", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])


def missing_from(code: str) -> list[str]:
    return [name for name in OPTIONAL if re.search(rf"^\s*(import|from) {name}\b", code, re.MULTILINE) and importlib.util.find_spec(name) is None]


def outside_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of the headings, as Python-Markdown and GitHub make them for plain words."""
    headings = re.findall(r"^#+ (.+)$", outside_fences(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.filterwarnings("default")
@each_page
def test_examples_run_and_print_what_is_shown(page: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of a page in order, as one program."""
    module = types.ModuleType(f"examples_of_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # torch.compile looks a function's globals up in its module
    names = vars(module)
    ran, left_out = 0, []
    for block in EXAMPLE.finditer(page.read_text(encoding="utf-8")):
        if missing := missing_from(block["code"]):
            left_out += missing
            continue
        line = page.read_text(encoding="utf-8")[: block.start("code")].count("\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + block["code"], page.name, "exec"), names)
        assert printed.getvalue() == (block["output"] or ""), f"{page.name}, line {line}"
        ran += 1
    if left_out:
        pytest.skip(f"not installed: {', '.join(left_out)}; {ran} examples ran")


def test_every_kind_of_example_is_in_the_readme():
    codes = [block["code"] for block in EXAMPLE.finditer((ROOT / "README.md").read_text(encoding="utf-8"))]
    for module in ("rlscan.torch_triton", "rlscan.jax_pallas", "rlscan.spec.reference"):
        assert any(f"from {module} import" in code for code in codes)


@each_page
def test_links_resolve(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_fences(page.read_text(encoding="utf-8"))):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name}: {target}"


@each_page
def test_no_page_mentions_a_path_of_some_machine(page: Path):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w./])(?:~|/(?:home|work|tmp|usr|opt|mnt|root|data|var|Users))/\S*", text)
    assert not re.findall(r"[A-Z]:\\\w+", text)


def test_the_documentation_builds_without_a_warning(tmp_path: Path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").is_file()


def test_the_page_of_the_recurrences_is_current():
    page = ROOT / "docs" / "recurrences.md"
    assert page.read_text(encoding="utf-8") == recurrences_page(), "run `python -m rlscan.crosscheck docs`"


def test_the_table_of_the_page_on_migration_is_current():
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    assert table() in page
    assert page == with_table(page), "run `python -m rlscan.crosscheck docs`"


@pytest.mark.parametrize(("path", "text"), stubs().items(), ids=stubs())
def test_stubs_are_current(path: str, text: str):
    assert (ROOT / path).read_text(encoding="utf-8") == text, "run `python -m rlscan.spec.stubs`"


def test_every_report_is_linked():
    index = (REPORTS / "index.md").read_text(encoding="utf-8")
    for report in REPORTS.glob("*.md"):
        assert report.name == "index.md" or f"({report.name})" in index, f"{report.name} is not linked from the index"
