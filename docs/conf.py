"""The site: Sphinx reads the Markdown of the repository and the docstrings of the package.

``tox -e docs`` builds it. The source folder is the root of the repository, so a link between two
documents is the same link on a code host and in the site. ``docs/toc.yml`` has the order of the
pages.
"""

from __future__ import annotations

import dataclasses
import inspect
from importlib.metadata import version as installed_version
from typing import Any

from sphinx.application import Sphinx

project = "batchkeeper"
author = "The batchkeeper authors"
copyright = author  # noqa: A001 - Sphinx asks for this name.
version = release = installed_version("batchkeeper")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_external_toc",
]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md"]
# Folders that the search for pages need not enter.
exclude_patterns = [".*", "build", "dist", "tests", "**/__pycache__"]
external_toc_path = "docs/toc.yml"
myst_heading_anchors = 4  # The levels of headings that links may name, as on a code host.

add_module_names = False
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    # Up to those of Python, which have documents of their own.
    "inherited-members": "BaseException,Enum,Generic,Iterator,Mapping,str,int,tuple",
}
napoleon_use_ivar = True  # Attributes of a class are a list in its text.
# The names in docstrings and signatures must be in the reference, but for those of other packages.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!batchkeeper\b).*"),
    (r"py:class", r"batchkeeper\..*\b(_\w+|T)"),  # private names, and variables of types
    # Types that callers do not name.
    (
        r"py:class",
        r".*\.(Abandonment|AsyncSignal|Deadline|Holder|NotCached|Snapshot|Row|(Async)?FencedOutcomes)",
    ),
    (r"py:class", r"batchkeeper\.batching\.hooks\.\w+Hook"),  # Hook is any of them.
    (r"py:class", r"batchkeeper\.stores\.backend\.(Session|Watches)"),
    (r"py:class", r"batchkeeper\.ops\.steps\.PartRequest"),
    (r"py:class", r"batchkeeper\.testing\.faults\.injector\.Target"),
]

html_theme = "furo"
html_title = f"batchkeeper {release}"
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # It reads pages with `fetch`, which fails where they are files.


def setup(app: Sphinx) -> None:
    """Connect the functions below."""
    app.connect("autodoc-process-signature", hide_signature)
    app.connect("autodoc-skip-member", skip_fields)


def hide_signature(
    app: Sphinx, what: str, name: str, target: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Hide the signatures of classes whose objects the package makes, not its user."""
    del app, name, options
    made_by_users = dataclasses.is_dataclass(target) or "Args:" in (inspect.getdoc(target) or "")
    return None if what != "class" or made_by_users else ("", returns)


def skip_fields(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Skip the fields of named tuples: "Alias for field number 0" tells nothing."""
    del app, what, name, skip, options
    return True if type(member).__name__ == "_tuplegetter" else None
