"""Writes the file maps of the documents from the first sentence of each module's docstring.

``python tools/filemap.py`` writes the map of the top folders into ARCHITECTURE.md, between its two
markers, and the map of the modules into docs/design/files.md. With ``--check``, it writes nothing
and fails if one of them is out of date.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
START: Final = "<!-- filemap: written by `python tools/filemap.py` -->\n"
END: Final = "<!-- end of filemap -->\n"
HEAD: Final = """# Files

Every module of the package and of `tools/`, with the first sentence of its docstring. Each folder
`_sync/` has the modules for threads, generated from the `async_*.py` beside it.

<!-- Written by `python tools/filemap.py`. -->
"""


def first_sentence(module: Path) -> str:
    """Return the first sentence of a module's docstring, as Markdown."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split()).rstrip(":")
    sentence = re.split(r"(?<=[^.]\.)\s(?=[A-Z`])", paragraph)[0].rstrip(".")
    sentence = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", sentence)
    return sentence.replace("``", "`").replace("|", r"\|")


def packages() -> Iterator[Path]:
    """Yield the folders of the package but the root, without those of generated modules."""
    for head in sorted(ROOT.glob("[a-z]*/**/__init__.py")):
        folder = head.parent.relative_to(ROOT)
        if folder.parts[0] not in {"build", "examples", "tests"} and "_sync" not in folder.parts:
            yield folder


def table(modules: list[tuple[str, Path]]) -> str:
    """Return a table of names with what their modules say of themselves."""
    rows = [f"| `{name}` | {first_sentence(module)} |\n" for name, module in modules]
    return "".join(["| | |\n| --- | --- |\n", *rows])


def folder_map() -> str:
    """Return the map of the folders at the top."""
    top = (folder for folder in packages() if len(folder.parts) == 1)
    heads = ((folder, ROOT / folder / "__init__.py") for folder in top)
    return "".join(f"- `{folder}/`: {first_sentence(head)}\n" for folder, head in heads)


def module_map() -> str:
    """Return the page of all modules."""
    parts = [HEAD]
    for folder in [Path(), *packages(), Path("tools")]:
        found = sorted((ROOT / folder).glob("*.py"))
        modules = [(path.name, path) for path in found if path.name != "__init__.py"]
        title = f"{folder}/" if folder.parts else "The root"
        parts.append(f"\n## {title}\n\n")
        if (head := ROOT / folder / "__init__.py").exists():
            parts.append(f"{first_sentence(head)}.\n\n")
        if modules:
            parts.append(table(modules))
    return "".join(parts).rstrip("\n") + "\n"


def main() -> None:
    """Write the maps, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, but compare")
    check = parser.parse_args().check
    document, page = ROOT / "ARCHITECTURE.md", ROOT / "docs" / "design" / "files.md"
    before, _, rest = document.read_text().partition(START)
    _, _, after = rest.partition(END)
    stale = []
    for path, text in {
        document: f"{before}{START}{folder_map()}{END}{after}",
        page: module_map(),
    }.items():
        if not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(text)
    if check and stale:
        sys.exit(f"out of date, run python tools/filemap.py: {', '.join(map(str, stale))}")


if __name__ == "__main__":
    main()
