"""The command: `python -m rlscan.crosscheck`, installed as `rlscan-crosscheck`.

Without a sub-command it runs the crosscheck. Exit code 0: all agree; 1: they do not, an operation met no problem, or what was
asked for is not installed; 2: the command line is wrong.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rlscan.crosscheck.backends import BACKENDS, Backend, Device
from rlscan.spec.recurrences import RECURRENCES

if TYPE_CHECKING:
    from rlscan.crosscheck.compare import Report

DEFAULT_BACKENDS = {"cpu": ("torch", "jax"), "cuda": ("torch", "triton", "jax", "pallas")}
"""Without --backends, those of these that are installed. On a CPU kernels are interpreted, which is slow: ask for them by name."""

BENCH_BACKENDS = ("torch", "jax")

LAST_LINES = 5
"""Of what a process that died wrote."""


class Parser(argparse.ArgumentParser):
    """Errors on one line, which a usage of many would hide."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help shows the options)\n")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser, commands = _parser()
    # The plain run is the default: whatever does not begin with a command are its options.
    if not arguments or (arguments[0] not in commands and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "run")
    options = parser.parse_args(arguments)
    return options.command(options)


def _add_files(conformance: argparse.ArgumentParser) -> None:
    conformance.add_argument("--json", type=_to_write, metavar="FILE", help="write what was found")
    conformance.add_argument("--html", type=_to_write, metavar="FILE", help="write it as one page, with a drawing of each window")


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    parser = Parser(
        prog="rlscan-crosscheck",
        description="Compares both backends with the spec, and with each other.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True)

    run = commands.add_parser("run", help="compare (the default)", description="Runs every scenario on every backend against the float64 oracle.")
    run.add_argument("--ops", type=_names(lambda: RECURRENCES), default=tuple(RECURRENCES), metavar="A,B", help=f"of {', '.join(RECURRENCES)}")
    run.add_argument("--backends", type=_names(lambda: BACKENDS), metavar="A,B", help=f"of {', '.join(BACKENDS)}; default: those that are installed")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run.add_argument("--scenarios", type=_names(_scenarios), metavar="A,B", help="random, B1 to B12, long, cases, rollouts; default: all")
    extent = run.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_false", dest="full", help="a selection of everything (the default)")
    extent.add_argument("--full", action="store_true", help="every combination")
    run.set_defaults(full=False)
    run.add_argument("--gradients", choices=("yes", "no", "only"), default="yes", help="compare gradients too (the default), not, or nothing else")
    run.add_argument("--seed", type=_integer_from(0), default=0)
    run.add_argument(
        "--jobs",
        type=_integer_from(1),
        default=1,
        metavar="N",
        help="processes at a time, each with one operation and scenario; compilers take most of the time",
    )
    run.add_argument("--json", type=_to_write, metavar="FILE", help="write what was found")
    run.set_defaults(command=_run)
    parser.epilog = f"Without a command, as with run:\n\n{run.format_help()}"

    bench = commands.add_parser("bench", help="time", description="Times what agrees with the oracle, beside a copy of the same bytes in the same run.")
    bench.add_argument("--shapes", type=_shapes, metavar="ROWSxSTEPS,..", help="plain calls at these sizes, instead of the table of targets")
    bench.add_argument("--ops", type=_names(_workloads), metavar="A,B", help="of those that `crosscheck/workloads.py` has arrays for; default: all")
    bench.add_argument("--layout", choices=("batch", "time", "both"), default="both")
    bench.add_argument("--backends", type=_names(lambda: BENCH_BACKENDS), metavar="A,B", help="torch, jax; default: those that are installed")
    bench.add_argument(
        "--groups", type=_names(_groups), metavar="A,B", help="of large, medium, long, retrace, options, short, backward, cpu, baselines, calls, ppo"
    )
    bench.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    bench.add_argument("--quick", action="store_true", help="a few rows of each group")
    bench.add_argument("--baselines", action=argparse.BooleanOptionalAction, default=True)
    bench.add_argument("--jobs", type=_integer_from(1), default=1, metavar="N", help="processes that compile before anything is timed")
    bench.add_argument("--json", type=_to_write, metavar="FILE", help="write what was found, row after row")
    bench.add_argument("--add", action="store_true", help="keep what FILE has already, and measure what it has not")
    bench.add_argument("--ratios", type=_to_write, metavar="FILE", help="put what was found there for this device, for `pytest -m perf`")
    bench.add_argument("--counters", action="store_true", help="then read the device's counters for what missed a target, with NVIDIA's profiler ncu")
    bench.set_defaults(command=_bench)

    conform = commands.add_parser(
        "conform",
        help="say which boundary rules a function of yours holds",
        description="Calls functions on small windows and says of each boundary rule whether it holds, is violated, or can't be said, and what the function "
        "does instead. Exit code 1: a rule is violated, or a function has another fault; 2: one can't be imported or its parameters are not understood.",
    )
    conform.add_argument("functions", nargs="+", metavar="PACKAGE.MODULE:FUNCTION")
    conform.add_argument("--op", required=True, choices=tuple(RECURRENCES), help="what the functions are meant to compute")
    conform.add_argument("--framework", choices=("numpy", "torch", "jax"), default="numpy", help="what their arrays are; default: %(default)s")
    conform.add_argument("--layout", choices=("batch", "time", "row"), help="[N, T], [T, N] or [T]; default: the first that gives right results")
    conform.add_argument("--adapter", type=_pairs, metavar="OURS=THEIRS,..", help="what parameters mean that are not understood by their names")
    conform.add_argument("--constants", type=_constants, metavar="gamma=0.99,lam=0.95", help="where they are built in")
    conform.add_argument("--rules", type=_names(_rules), metavar="A,B", help="formula, per-step, B1 to B12; default: all")
    _add_files(conform)
    conform.set_defaults(command=_conform)

    peers = commands.add_parser("peers", help="look at the functions of other libraries, those that are installed, as conform does")
    _add_files(peers)
    peers.set_defaults(command=_peers)

    report = commands.add_parser(
        "report", help="render the JSON of a run, of a benchmark, of conform or of the tests, as a Markdown page and what is beside it"
    )
    report.add_argument("json", type=Path, metavar="FILE.json")
    report.add_argument("--to", type=_page_to_write, metavar="FILE.md", help="default: standard output")
    report.set_defaults(command=_report)

    docs = commands.add_parser("docs", help="write the page of the recurrences from their declarations, and the table of the page on migration beside it")
    docs.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    docs.add_argument("--to", type=Path, default=Path("docs/recurrences.md"), metavar="FILE.md", help="default: %(default)s")
    docs.set_defaults(command=_docs)

    transformations = commands.add_parser(
        "transformations",
        help="write the page of what works under which transformation",
        description="Runs every operation under every transformation of PyTorch and JAX, on a CPU, and writes what came out. "
        "Exit code 1, and nothing is written, where one is wrong.",
    )
    transformations.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a cell of the page is out of date")
    transformations.add_argument("--to", type=Path, default=Path("docs/transformations.md"), metavar="FILE.md", help="default: %(default)s")
    transformations.set_defaults(command=_transformations)

    vectors = commands.add_parser("vectors", help="write calls with their results, and those of faulty variants, for other languages")
    vectors.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file is out of date")
    vectors.add_argument("--to", type=Path, metavar="FOLDER", help="default: where they are installed")
    vectors.set_defaults(command=_vectors)

    kernels = commands.add_parser(
        "kernels",
        help="write what the compiled kernels take",
        description="Compiles the kernels of both backends for an H200, which need not be there, and writes their registers, instructions and memory accesses. "
        "Exit code 1, and nothing is written, where a rule is broken that was not, or further than it was.",
    )
    written = kernels.add_mutually_exclusive_group()
    written.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the data is out of date")
    written.add_argument("--accept", action="store_true", help="write it in any case: what is broken becomes a known shortfall")
    kernels.set_defaults(command=_kernels)

    tune = commands.add_parser(
        "tune",
        help="measure how this GPU wants rows cut into programs",
        description="Times GAE with other plans than those measured on an H200, and writes what is faster to a file that rlscan reads when it is imported. "
        "Both backends' kernels follow it. Delete the file to undo that.",
    )
    tune.add_argument("--to", type=Path, metavar="FILE", help="default: the file that is read, RLSCAN_TUNING or rlscan/tuning.json in your configuration")
    tune.set_defaults(command=_tune)
    return parser, list(commands.choices)


def _names(known: Callable[[], Sequence[str] | dict]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        unknown = [name for name in names if name not in known()]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is not known; wanted some of {', '.join(known())}")
        return names

    return parse


def _rules() -> Sequence[str]:
    from rlscan.crosscheck.conformance import rules_of

    return rules_of("gae")


def _pairs(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"{text} is not like terminated=flags,bootstrap_value=v_T")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _constants(text: str) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in _pairs(text).items()}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not like gamma=0.99,lam=0.95") from None


def _integer_from(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no integer >= {least}")
        return int(text)

    return parse


def _to_write(text: str) -> Path:
    """A file that can be written, which is found out before a long run and not after it."""
    file = Path(text)
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} can't be written")
    return file


def _page_to_write(text: str) -> Path:
    file = _to_write(text)
    if file.suffix != ".md":
        raise argparse.ArgumentTypeError(f"{text} does not end in .md; the plots beside it are named after it")
    return file


MOST_ELEMENTS = 2**33
"""32 GB of float32 for each array."""


def _shapes(text: str) -> tuple[tuple[int, int], ...]:
    shapes = [tuple(map(int, shape.split("x"))) for shape in text.split(",") if all(part.isdecimal() for part in shape.split("x"))]
    if len(shapes) != len(text.split(",")) or any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
        raise argparse.ArgumentTypeError(f"{text} is not like 16384x512,4096x2048: rows x steps")
    if large := [f"{rows}x{steps}" for rows, steps in shapes if rows * steps > MOST_ELEMENTS]:
        raise argparse.ArgumentTypeError(f"{', '.join(large)} has more than {MOST_ELEMENTS} steps, whose arrays no device holds")
    return tuple(dict.fromkeys((rows, steps) for rows, steps in shapes))


def _workloads() -> Sequence[str]:
    from rlscan.crosscheck.workloads import OPS

    return OPS


def _groups() -> Sequence[str]:
    from rlscan.crosscheck.bench import GROUPS

    return GROUPS


def _scenarios() -> dict:
    from rlscan.crosscheck.scenarios import SCENARIOS

    return SCENARIOS


def _run(options: argparse.Namespace) -> int:
    from rlscan.crosscheck import report
    from rlscan.crosscheck.compare import compare
    from rlscan.crosscheck.gradients import compare_gradients
    from rlscan.crosscheck.scenarios import Extent

    # JAX would take three quarters of a GPU that torch needs too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    device = _device(options.device)
    backends, missing = _available(options.backends, device)
    for name, reason in missing.items():
        print(f"{name} is missing: {reason}", file=sys.stderr)
    if options.backends and missing:
        return 1
    if not backends:
        print(f"there is nothing to compare on {device}", file=sys.stderr)
        return 1
    scenarios = options.scenarios or tuple(_scenarios())
    if "rollouts" in scenarios and importlib.util.find_spec("gymnasium") is None:
        print("the scenario rollouts needs gymnasium: pip install 'rlscan[crosscheck]', or choose others by --scenarios", file=sys.stderr)
        return 1
    date = report.now()
    header = report.header(device, [backend.name for backend in backends], scenarios, options.full, options.seed, date)
    if options.jobs > 1:
        found = _in_processes(options, header)
    else:
        recurrences = [RECURRENCES[name] for name in options.ops]
        results, gradients = options.gradients != "only", options.gradients != "no"
        extent = Extent(options.full, options.seed)
        with _progress(len(recurrences) * (len(scenarios) * results + gradients)) as progress:
            found = compare(recurrences if results else [], backends, extent, device, scenarios, progress, header)
            if gradients:
                found.gradients, found.gradient_pairs = compare_gradients(recurrences, backends, extent, device, scenarios, progress)
    report.show(found)
    if options.json:
        options.json.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    return 0 if found.agrees else 1


def _in_processes(options: argparse.Namespace, header: dict[str, Any]) -> Report:
    """The findings of one process for each operation and scenario, and for its gradients, put together. One that dies has failed, and the others go on."""
    from rlscan.crosscheck.compare import Report, Tally

    def run(op: str, scenarios: str, gradients: str, file: Path) -> Report:
        settings = ["--ops", op, "--scenarios", scenarios, "--gradients", gradients, "--backends", ",".join(header["backends"]), "--device", options.device]
        settings += ["--full" if options.full else "--quick", "--seed", str(options.seed), "--json", str(file)]
        flags = ["-P"] if sys.flags.safe_path else []
        done = subprocess.run([sys.executable, *flags, "-m", "rlscan.crosscheck", "run", *settings], capture_output=True, text=True, check=False)
        if file.exists():
            return Report.from_json(json.loads(file.read_text(encoding="utf-8")))
        last_lines = "\n".join(done.stderr.splitlines()[-LAST_LINES:])
        failure = f"{op}, {scenarios if gradients == 'no' else 'gradients'}: the process ended with {done.returncode}: {last_lines}"
        failed = [Tally(op, backend, problems=1, failed=1, failures=[failure]) for backend in header["backends"]]
        return Report(header, failed, []) if gradients == "no" else Report(header, [], [], failed)

    parts = [(op, scenario, "no") for op in options.ops for scenario in header["scenarios"]] if options.gradients != "only" else []
    # the scenarios of an operation share what is compiled to differentiate it
    parts += [(op, ",".join(header["scenarios"]), "only") for op in options.ops] if options.gradients != "no" else []
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
        _progress(len(parts)) as progress,
    ):
        waiting = [pool.submit(run, *part, Path(folder) / f"{number}.json") for number, part in enumerate(parts)]
        for done in concurrent.futures.as_completed(waiting):
            done.result()
            progress("processes done")
        return Report.together(header, [done.result() for done in waiting])


def _bench(options: argparse.Namespace) -> int:
    if options.add and not options.json:
        print("--add needs the file to add to: --json FILE", file=sys.stderr)
        return 2
    if options.shapes and (options.groups or options.quick):
        print("--shapes takes the place of the groups; give it without --groups and --quick", file=sys.stderr)
        return 2
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with tempfile.TemporaryDirectory() as name:
        from rlscan.crosscheck import bench, bench_report, counters, ratios, report

        if options.counters and (reason := counters.missing()):
            print(f"nothing can be counted: {reason}", file=sys.stderr)
            return 1
        if options.ratios:
            if options.json and options.ratios.resolve() == options.json.resolve():
                print(f"{options.json} can't be both what was found and the ratios", file=sys.stderr)
                return 2
            try:
                ratios.load(options.ratios)
            except ValueError as error:
                print(f"can't put ratios into {options.ratios}: it {error}", file=sys.stderr)
                return 2
        folder = Path(name)
        bench.use_caches(folder)
        device = _device(options.device)
        if options.ratios and device == "cpu":
            print("--ratios takes fractions of a GPU's copy speed, and this run is on a CPU", file=sys.stderr)
            return 2
        missing = [BACKENDS[name].missing(device) for name in options.backends or BENCH_BACKENDS]
        if all(missing):
            print(*missing, f"there is nothing to time on {device}", sep="\n", file=sys.stderr)
            return 1
        plan = bench.plan(options, device)
        if not plan.entries and not plan.updates:
            print("there is nothing to time; choose other groups, operations, layouts or backends", file=sys.stderr)
            return 1
        date = report.now()
        header = bench.header(device, _words(options), date)
        found = bench.Found(header, skipped=plan.skipped)
        if options.add and options.json and options.json.exists():
            try:
                found = bench.Found.from_json(json.loads(options.json.read_text(encoding="utf-8"))).continued(header, plan.skipped)
            except json.JSONDecodeError as error:
                print(f"can't add to {options.json}: it is no JSON: {error}", file=sys.stderr)
                return 2
            except ValueError as error:
                print(f"can't add to {options.json}: it {error}", file=sys.stderr)
                return 1
            except (KeyError, TypeError):
                print(f"can't add to {options.json}: it is no benchmark's", file=sys.stderr)
                return 2

        def save() -> None:
            if options.json:
                options.json.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")

        with _progress(plan.work(options.jobs)) as progress:
            for _ in bench.run(plan, found, options.jobs, folder, progress):
                save()
        if options.counters:
            found.counters = counters.measured(found)
            save()
    if options.ratios:
        ratios.store(found, options.ratios)
    bench_report.show(found)
    return 1 if any(row.implementation == "rlscan" and row.failure for row in found.rows) else 0


def _words(options: argparse.Namespace) -> list[str]:
    """The command line, but for where its output goes."""
    words = ["rlscan-crosscheck", "bench"]
    if options.shapes:
        words += ["--shapes", ",".join(f"{rows}x{steps}" for rows, steps in options.shapes)]
    for name in ("ops", "backends", "groups"):
        if getattr(options, name):
            words += [f"--{name}", ",".join(getattr(options, name))]
    words += ["--layout", options.layout, "--device", options.device, "--jobs", str(options.jobs)]
    words += ["--quick"] if options.quick else []
    return words if options.baselines else [*words, "--no-baselines"]


def _device(wanted: str) -> Device:
    if wanted != "auto":
        return "cuda" if wanted == "cuda" else "cpu"
    return "cuda" if any(BACKENDS[name].missing("cuda") is None for name in DEFAULT_BACKENDS["cuda"]) else "cpu"


def _available(wanted: Sequence[str] | None, device: Device) -> tuple[list[Backend], dict[str, str]]:
    """The backends to run, and why others are not."""
    names = wanted or DEFAULT_BACKENDS[device]
    if device == "cpu" and "triton" in names:
        # Triton decides when it is imported, which is not before a kernel is wanted.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    reasons = {name: BACKENDS[name].missing(device) for name in names}
    return [BACKENDS[name] for name, reason in reasons.items() if reason is None], {name: reason for name, reason in reasons.items() if reason}


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if importlib.util.find_spec("rich") is None:
        raise SystemExit("the crosscheck's tables need rich: pip install 'rlscan[crosscheck]'")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task, started = bar.add_task("", total=total), False

        def advance(description: str) -> None:
            nonlocal started
            bar.update(task, description=description, advance=int(started))
            started = True

        yield advance


def _tables_can_be_shown() -> bool:
    found = importlib.util.find_spec("rich") is not None
    if not found:
        print("the tables need rich: pip install 'rlscan[crosscheck]'", file=sys.stderr)
    return found


def _one_file_for_two(options: argparse.Namespace) -> bool:
    if same := bool(options.json and options.html and options.json.resolve() == options.html.resolve()):
        print(f"--json and --html are both {options.json}; wanted two files", file=sys.stderr)
    return same


def _peers(options: argparse.Namespace) -> int:
    from rlscan.crosscheck.peers import PEERS

    if _one_file_for_two(options):
        return 2
    if not _tables_can_be_shown():
        return 1
    missing = {peer.path: reason for peer in PEERS if (reason := peer.missing())}
    _show_conformance([peer.report() for peer in PEERS if peer.path not in missing], options)
    for path, reason in missing.items():
        print(f"{path} is left out: {reason}", file=sys.stderr)
    return 0


def _show_conformance(reports: Sequence[Any], options: argparse.Namespace) -> None:
    from rlscan.crosscheck import conform_page
    from rlscan.crosscheck.verdicts import as_json

    for found in reports:
        conform_page.show(found)
    if options.json:
        options.json.write_text(json.dumps(as_json(reports), indent=1) + "\n", encoding="utf-8")
    if options.html:
        options.html.write_text(conform_page.page(reports), encoding="utf-8")


def _conform(options: argparse.Namespace) -> int:
    from rlscan.crosscheck.conformance import conform

    if _one_file_for_two(options):
        return 2
    if not _tables_can_be_shown():
        return 1
    sys.path.append(os.getcwd())  # as `python` has it, and an installed command has not
    reports = []
    for path in options.functions:
        try:
            function = _imported(path)
            settings = {name: getattr(options, name) for name in ("framework", "layout", "adapter", "constants", "rules")}
            reports.append(conform(function, options.op, name=path.partition(":")[2], **settings))
        except (ImportError, AttributeError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    _show_conformance(reports, options)
    return 0 if all(found.conforms for found in reports) else 1


def _imported(path: str) -> Any:
    module, colon, names = path.partition(":")
    if not module or not colon or not names:
        raise ValueError("is not like package.module:function")
    try:
        function = importlib.import_module(module)
    except ImportError:
        raise
    except (Exception, SystemExit) as error:  # a module of somebody's may do anything when it is imported
        raise ImportError(f"{type(error).__name__} when it was imported: {error}") from error
    for name in names.split("."):
        function = getattr(function, name)
    if not callable(function):
        raise ValueError("is no function")
    return function


def _report(options: argparse.Namespace) -> int:
    from rlscan.crosscheck.pages import rendered

    try:
        pages = rendered(options.json, options.to.stem if options.to else options.json.stem)
    except (OSError, ValueError) as error:
        print(f"can't read {options.json}: {error}", file=sys.stderr)
        return 2
    for name, text in pages.items():
        if options.to:
            (options.to.parent / name).write_text(text, encoding="utf-8")
        elif name.endswith(".md"):
            print(text, end="")
    return 0


def _docs(options: argparse.Namespace) -> int:
    from rlscan.crosscheck.migration import with_table
    from rlscan.spec.docstrings import recurrences_page

    if not options.to.parent.is_dir():
        print(f"there is no folder {options.to.parent}: run this in a checkout, or name a file by --to", file=sys.stderr)
        return 2
    pages = {options.to: recurrences_page()}
    migration = options.to.with_name("migration.md")
    if migration.is_file():
        pages[migration] = with_table(migration.read_text(encoding="utf-8"))
    old = [path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in old:
            print(f"{path} is out of date; run `python -m rlscan.crosscheck docs`", file=sys.stderr)
        return 1 if old else 0
    for path in old:
        path.write_text(pages[path], encoding="utf-8")
    return 0


def _transformations(options: argparse.Namespace) -> int:
    if missing := [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]:
        print(f"there is no {' and no '.join(missing)}, whose transformations are on the page", file=sys.stderr)
        return 1
    if not options.to.parent.is_dir():
        print(f"there is no folder {options.to.parent}: run this in a checkout, or name a file by --to", file=sys.stderr)
        return 2
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from rlscan.crosscheck import transformations

    try:
        with _progress(transformations.number()) as progress:
            text = transformations.run_all(progress)
    except AssertionError as error:
        print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    if not options.check:
        options.to.write_text(text, encoding="utf-8")
        return 0
    if options.to.is_file() and transformations.read(options.to.read_text(encoding="utf-8"))[0] == transformations.read(text)[0]:
        return 0
    print(f"{options.to} is out of date; run `python -m rlscan.crosscheck transformations`", file=sys.stderr)
    return 1


def _vectors(options: argparse.Namespace) -> int:
    from rlscan.crosscheck import vectors

    folder = options.to or vectors.DATA
    if not folder.is_dir():
        print(f"there is no folder {folder}", file=sys.stderr)
        return 2
    if not options.check:
        vectors.write(folder)
    elif names := vectors.outdated(folder):
        print(f"out of date: {', '.join(names)}; run `python -m rlscan.crosscheck vectors`", file=sys.stderr)
        return 1
    return 0


def _tune(options: argparse.Namespace) -> int:
    from rlscan.crosscheck import report, tune
    from rlscan.spec.plan import MEASURED, tuning_file

    try:
        timer = tune.gpu_timer()
    except (ImportError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    file = options.to or tuning_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _to_write(str(file))
    except (OSError, argparse.ArgumentTypeError) as error:
        print(error, file=sys.stderr)
        return 2
    found = tune.tuned(timer)
    date = report.now()
    versions = {name: report.version(name) for name in ("rlscan", "torch", "triton")}
    tune.write(file, found, {"date": date, "device": report.device_name("cuda"), "versions": versions})
    print(f"{file}: {found}" if found != MEASURED else f"{file}: nothing is faster here than what is built in")
    return 0


def _kernels(options: argparse.Namespace) -> int:
    if missing := [name for name in ("torch", "triton", "jax") if importlib.util.find_spec(name) is None]:
        print(f"the kernels of both backends are compiled, by Triton, and there is no {' and no '.join(missing)}", file=sys.stderr)
        return 1
    from rlscan.crosscheck import footprint

    with _progress(len(footprint.BUILDS)) as progress:
        now = footprint.as_json(footprint.measure_all(progress=progress))
    before = footprint.stored() if footprint.DATA.is_file() else {"versions": {}, "kernels": {}, "shortfalls": {}}
    differences = footprint.differences(before, now)
    print("\n".join(differences) or "nothing has changed")
    if worse := footprint.worse(before, now):
        print("\nrules that are broken, or further than they were:", *worse, sep="\n", file=sys.stderr)
    if options.check:
        # figures of other versions are others
        return int(bool(worse or (differences and before["versions"] == now["versions"])))
    if worse and not options.accept:
        print("\nnothing is written; --accept makes these known shortfalls", file=sys.stderr)
        return 1
    footprint.DATA.write_text(footprint.dumps(now), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
