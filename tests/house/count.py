"""Count what a reader meets in the package: documentation, names, imports, parameters.

Run it on any checkout: `python tests/house/count.py [path/to/src]`. The tests in this folder use
the same functions, so the figures in the ADRs and the nets in CI cannot drift apart.

What counts as what:

- *documentation*: lines of docstrings (of modules, classes, functions and the strings below a
  constant or a field) and lines that hold only a comment;
- *homonym*: a top-level function or class whose name stands in two or more modules, private names
  included, dunder names left out;
- *import*: every import statement wherever it stands, lazy ones and those under TYPE_CHECKING
  included; `from a.b import c` points at the module `a.b.c` if there is one, else at `a.b`;
- *positional parameters*: those a caller may pass by position; `self` and `cls` do not count.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One module of the package: its dotted name, its path, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module


def read_package(src: Path) -> dict[str, Source]:
    """Every module below `src`, by dotted name; what is vendored is left out."""
    found = {}
    for path in sorted(src.rglob("*.py")):
        if "vendor" in path.parts:
            continue
        parts = list(path.relative_to(src).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_text()
        found[".".join(parts)] = Source(".".join(parts), path, text, ast.parse(text))
    return found


@cache
def this_package() -> dict[str, Source]:
    """The package of this checkout, read once per process: parsing it takes four seconds of CPU."""
    return read_package(Path(__file__).parents[2] / "src")


def documentation_lines(source: Source) -> int:
    """Lines of docstrings and of comments that have a line to themselves."""
    lines: set[int] = set()
    for node in ast.walk(source.tree):
        body = getattr(node, "body", [])
        for statement in body if isinstance(body, list) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.strip().startswith("#"):
            lines.add(number)
    return len(lines)


def homonyms(package: dict[str, Source]) -> dict[str, list[str]]:
    """Top-level functions and classes whose name stands in more than one module."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in package.values():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef | FunctionNode) and not node.name.startswith("__"):
                homes[node.name].append(source.name)
    return {name: sorted(set(at)) for name, at in sorted(homes.items()) if len(set(at)) > 1}


def imports(package: dict[str, Source]) -> dict[str, set[str]]:
    """Which module of the package imports which, by any import statement."""
    out: dict[str, set[str]] = {name: set() for name in package}
    for source in package.values():
        for node in ast.walk(source.tree):
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    targets.append(inner if inner in package else node.module)
            out[source.name] |= {name for name in targets if name in package} - {source.name}
    return out


def import_cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(edges[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                cycles.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(edges):
        if name not in index:
            visit(name)
    return sorted(cycles)


def functions(source: Source) -> Iterator[tuple[str, FunctionNode]]:
    """Every function of a module with its qualified name, methods and inner functions included."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, FunctionNode]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FunctionNode):
                yield f"{prefix}{child.name}", child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(source.tree, "")


def positional_parameters(node: FunctionNode) -> int:
    """How many arguments a caller may pass by position."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (1 if names[:1] in (["self"], ["cls"]) else 0)


def crowded_functions(package: dict[str, Source], most: int = 8) -> dict[str, int]:
    """Functions with more than `most` positional parameters."""
    return {
        f"{source.name}:{name}": count
        for source in package.values()
        for name, node in functions(source)
        if (count := positional_parameters(node)) > most
    }


def undocumented(package: dict[str, Source]) -> list[str]:
    """Public top-level functions and classes, and their public methods, without a docstring.

    Methods that override a documented method of a base class in the package inherit its words.
    """
    classes: dict[str, ast.ClassDef] = {}
    for source in package.values():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, node)

    def inherited(cls: ast.ClassDef, method: str, seen: frozenset[str] = frozenset()) -> bool:
        for base in cls.bases:
            name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
            parent = classes.get(name)
            if parent is None or name in seen:
                continue
            for item in parent.body:
                if isinstance(item, FunctionNode) and item.name == method:
                    return ast.get_docstring(item) is not None
            if inherited(parent, method, seen | {name}):
                return True
        return False

    out = []
    for source in package.values():
        for node in source.tree.body:
            if not isinstance(node, ast.ClassDef | FunctionNode) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node) is None:
                out.append(f"{source.name}:{node.name}")
            methods = node.body if isinstance(node, ast.ClassDef) else []
            out += [
                f"{source.name}:{node.name}.{item.name}"
                for item in methods
                if isinstance(item, FunctionNode)
                and isinstance(node, ast.ClassDef)
                and not item.name.startswith("_")
                and ast.get_docstring(item) is None
                and not inherited(node, item.name)
            ]
    return out


def main(src: Path) -> None:
    """Print the figures of a checkout."""
    package = read_package(src)
    lines = sum(source.text.count("\n") for source in package.values())
    documentation = sum(documentation_lines(source) for source in package.values())
    longest = max(package.values(), key=lambda source: source.text.count("\n"))
    cycles = import_cycles(imports(package))
    crowded = crowded_functions(package)
    print(f"modules                         {len(package):>7}")
    print(f"lines                           {lines:>7}")
    print(f"longest module                  {longest.text.count(chr(10)):>7}  {longest.name}")
    print(f"documentation                   {documentation / lines:>7.1%}")
    print(f"lines without documentation     {lines - documentation:>7}")
    print(f"homonyms                        {len(homonyms(package)):>7}")
    print(f"import cycles                   {len(cycles):>7}  {cycles or ''}")
    most = max(crowded.values(), default=0)
    print(f"functions with over 8 arguments {len(crowded):>7}  most {most}")
    print(f"public without a docstring      {len(undocumented(package)):>7}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "src")
