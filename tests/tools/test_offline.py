"""The check that the pages of the site load nothing from the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OFFLINE = Path(__file__).parents[2] / "tools" / "offline.py"

LOCAL = """<!doctype html>
<link rel="stylesheet" href="_static/site.css"><link rel="canonical" href="https://a.example/">
<style>body { background: url("data:image/png;base64,AA//") }</style>
<script src="_static/site.js"></script><img src="picture.png">
<a href="https://a.example/">a link that a reader follows</a>
"""


def check(site: Path) -> subprocess.CompletedProcess[str]:
    """Run the check on a folder."""
    command = [sys.executable, str(OFFLINE), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_site_of_its_own_files_passes(tmp_path: Path) -> None:
    """Files of the site, data in the page, and links to follow are no requests to others."""
    (tmp_path / "index.html").write_text(LOCAL)
    (tmp_path / "site.css").write_text("a { background: url(../a.svg) } /* https://a.example */")
    (tmp_path / "site.js").write_text("// see https://a.example\nfetch(`searchindex.js`)")
    done = check(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://a.example/x.js"></script>'),
        ("a.html", '<script src="//a.example/x.js"></script>'),
        ("a.html", '<link rel="preload stylesheet" href="https://a.example/x.css">'),
        ("a.html", '<img srcset="https://a.example/x.png 2x">'),
        ("a.html", "<style>@import 'https://a.example/x.css';</style>"),
        ("a.html", '<p style="background: url(https://a.example/x.png)">'),
        ("a.html", "<script>fetch('https://a.example/x.json')</script>"),
        ("a.css", "@font-face { src: url(https://a.example/x.woff2) }"),
        ("a.js", 'script.src="https://a.example/x.js"'),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_named(name: str, text: str, tmp_path: Path) -> None:
    """The check fails, and names the file and the address."""
    (tmp_path / "index.html").write_text(LOCAL)
    (tmp_path / name).write_text(text)
    done = check(tmp_path)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{name} loads ")
    assert "a.example/x" in line


def test_a_folder_without_pages_fails(tmp_path: Path) -> None:
    """A wrong folder is no site that passes."""
    assert check(tmp_path).returncode == 1
