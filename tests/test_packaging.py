"""What is installed is what lies in the repository: below `rlscan`, complete, and with no import that a package must not make."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = CONFIGURATION["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]

# The libraries whose functions `compat` stands in for, none of which it needs.
PEERS = {"torchrl", "tensordict", "stable_baselines3", "tianshou", "ray", "verl", "trl", "rl_triton", "rlax", "brax", "chex"}

# Which top-level modules a package may bring in, beyond NumPy and what those modules import themselves.
FORBIDDEN = {
    "rlscan.spec": {"torch", "triton", "jax", "jaxlib"},
    "rlscan.torch_triton": {"jax", "jaxlib", *PEERS},
    "rlscan.torch_triton.compat": {"jax", "jaxlib", *PEERS},
    "rlscan.jax_pallas": {"torch", "triton", *PEERS},
    "rlscan.jax_pallas.compat": {"torch", "triton", *PEERS},
    "rlscan.crosscheck": {"torch", "triton", "jax", "jaxlib"},
}
NEEDED = {package: ["torch", "triton"] if "torch" in package else ["jax"] for package in FORBIDDEN if "torch" in package or "jax" in package}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed_files() -> set[str]:
    """The files of the four folders, under the names they are installed by."""
    found = set()
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that was built from it."""
    for module in ("build", "setuptools"):
        pytest.importorskip(module)
    # A copy, because a build writes beside the sources, and takes in what an earlier one left there.
    copy = tmp_path_factory.mktemp("sources") / "rlscan"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "site", "*.egg-info", "__pycache__"))
    output = tmp_path_factory.mktemp("archives")
    run(sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", output, copy, cwd=output)
    return output


@pytest.fixture(scope="module")
def wheel(archives: Path) -> Path:
    return next(archives.glob("*.whl"))


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel installed into a folder of its own, without its dependencies."""
    target = tmp_path_factory.mktemp("installation")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target, wheel, cwd=target)
    return target


def test_every_package_is_listed():
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("__init__.py")]
    # Environments and build folders hold packages too, but not ours.
    assert {path.parent.as_posix() for path in paths if not path.parts[0].startswith((".", "build"))} == set(FOLDERS.values())
    assert set(SETUPTOOLS["packages"]) == set(FOLDERS)


def test_the_wheel_holds_the_four_folders_and_nothing_else(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"rlscan", f"rlscan-{CONFIGURATION['project']['version']}.dist-info"}
    assert {name for name in names if name.startswith("rlscan/")} == installed_files()
    assert "rlscan/__init__.py" not in names


@pytest.mark.parametrize("package", FOLDERS)
def test_the_wheel_is_typed(package: str, wheel: Path):
    assert f"{package.replace('.', '/')}/py.typed" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize("data", ["cases.json", "vectors/gae.json", "vectors/schema.json"])
def test_the_wheel_holds_the_data(data: str, wheel: Path):
    assert f"rlscan/crosscheck/data/{data}" in zipfile.ZipFile(wheel).namelist()


def test_the_source_archive_is_complete(archives: Path):
    with tarfile.open(next(archives.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = ["LICENSE", "README.md", "CHANGELOG.md", "Makefile", "mkdocs.yml"]
    assert {*files, "constraints/cpu.txt", "docs/index.md", "examples/conformance.cpp", "tests/test_packaging.py"} <= names
    assert {f"{folder}/py.typed" for folder in FOLDERS.values()} <= names


@pytest.mark.parametrize("package", FOLDERS)
def test_imports(package: str, installation: Path, tmp_path: Path):
    """The installed package imports from elsewhere, brings in only its own framework, and comes from the wheel."""
    for module in NEEDED.get(package, []):
        pytest.importorskip(module)
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        f"import {package}\n"
        f"{'; '.join(f'import {package}.{path.stem}' for path in (ROOT / FOLDERS[package]).glob('[!_]*.py')) if 'compat' in package else ''}\n"
        f"print(json.dumps([{package}.__file__, sorted({{name.partition('.')[0] for name in set(sys.modules) - before}})]))\n"
    )
    # PYTHONPATH comes before an editable installation, so that it is the wheel that is imported.
    file, modules = json.loads(run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(installation)).splitlines()[-1])
    assert Path(file).is_relative_to(installation)
    assert not FORBIDDEN[package] & set(modules)
    if package == "rlscan.spec":
        assert set(modules) - sys.stdlib_module_names <= {"rlscan", "numpy"}


@pytest.mark.skipif(not (ROOT / "crosscheck/__main__.py").exists(), reason="the crosscheck has no command line yet")
@pytest.mark.parametrize("start", [["-m", "rlscan.crosscheck"], ["-c", "from rlscan.crosscheck.__main__ import main; raise SystemExit(main())"]])
def test_the_crosscheck_starts_from_the_wheel(start: list[str], installation: Path, tmp_path: Path):
    """As a module, and as the console script does it: both take their arguments from the command line."""
    assert "usage" in run(sys.executable, *start, "--help", cwd=tmp_path, PYTHONPATH=str(installation)).lower()
