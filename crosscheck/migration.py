"""The table of docs/migration.md, read from the modules of `compat`, whose frameworks need not be installed."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

PACKAGES = ("torch_triton", "jax_pallas")


@dataclasses.dataclass(frozen=True)
class Function:
    """One function of a module.

    Attributes:
        replaces: what stands where it is to stand: an import, or a place in a script.
        wrong, repair: of its docstring, what the convention gets wrong and which argument repairs it.
    """

    name: str
    replaces: str
    wrong: str
    repair: str


@dataclasses.dataclass(frozen=True)
class Module:
    """The functions for one library.

    Attributes:
        path: as it is imported.
    """

    path: str
    functions: tuple[Function, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def modules() -> list[Module]:
    root = Path(__file__).resolve().parent.parent
    return [_read(path, f"rlscan.{package}.compat.{path.stem}") for package in PACKAGES for path in sorted((root / package / "compat").glob("[!_]*.py"))]


def _read(path: Path, name: str) -> Module:
    module = ast.parse(path.read_text(encoding="utf-8"))
    texts, replaces = {}, {}
    for statement in module.body:
        match statement:
            case ast.FunctionDef(name=own) if not own.startswith("_"):
                texts[own] = " ".join((ast.get_docstring(statement) or "").split())
            case ast.Assign(targets=[ast.Name(id=own)], value=ast.Name(id=other)) if other in texts:
                texts[own] = texts[other]
            case ast.Assign(targets=[ast.Name(id="REPLACES")], value=value):
                replaces = ast.literal_eval(value)
    return Module(name, tuple(_function(own, replaces.get(own, ""), text) for own, text in texts.items()))


def _function(name: str, replaces: str, text: str) -> Function:
    _, _, said = text.partition("Wrong: ")
    wrong, _, repair = said.partition(" Repair: ")
    return Function(name, replaces, wrong, repair)


def table() -> str:
    """A row for each function; functions of one module that say the same share it."""
    rows = ["| you have | write | what is wrong | what repairs it |", "| --- | --- | --- | --- |"]
    for module in modules():
        said: dict[tuple[str, str], list[Function]] = {}
        for function in module.functions:
            said.setdefault((function.wrong, function.repair), []).append(function)
        for (wrong, repair), functions in said.items():
            had = "<br>".join(dict.fromkeys(function.replaces for function in functions))
            written = f"`from {module.path} import {', '.join(function.name for function in functions)}`"
            rows.append(f"| {had} | {written} | {wrong} | {repair} |")
    return "\n".join(rows) + "\n"


START, END = "<!-- made by `python -m rlscan.crosscheck docs` -->\n", "<!-- until here -->\n"


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table()}\n{END}{after}"
