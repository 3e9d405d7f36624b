"""Private names of libraries are used only where docs/decisions/0002-dependencies.md says so."""

import ast
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "protocol", "client", "shuffler", "server", "authority", "lab", "cli")
OWN = ("silomix", "__future__")


def private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def insides(code: str) -> Iterator[str]:
    """The private names of libraries that a module imports, and writes past an interface."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith(OWN):
            yield from (
                f"{node.module}.{each.name}"
                for each in node.names
                if private(f"{node.module}.{each.name}")
            )
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if private(each.name))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = ast.unparse(node.value)
            if target.startswith("vars(") or target.endswith("__dict__"):
                yield target


def users() -> dict[str, list[str]]:
    files = [path for package in PACKAGES for path in (TREE / package).rglob("*.py")]
    found = {path: list(insides(path.read_text(encoding="utf-8"))) for path in files}
    return {path.relative_to(TREE).as_posix(): names for path, names in found.items() if names}


def test_every_use_of_a_librarys_inside_is_in_the_list() -> None:
    listed = (TREE / "docs/decisions/0002-dependencies.md").read_text(encoding="utf-8")
    found = users()
    assert "protocol/silomix_protocol/grpc_calls/last_word.py" in found
    assert {file: names for file, names in found.items() if f"`{file}`" not in listed} == {}


def test_every_contract_test_in_the_list_is_there() -> None:
    listed = (TREE / "docs/decisions/0002-dependencies.md").read_text(encoding="utf-8")
    table = listed.partition("## Insides of libraries")[2]
    files = [word for word in table.split("`") if word.startswith(("tests/", "proto", "server/"))]
    assert len(files) > 10
    assert [file for file in files if not (TREE / file).is_file()] == []
