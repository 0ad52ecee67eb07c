"""The report: one HTML file with pictures."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from batchkeeper.bench.results.report import check_extra, write_report
from batchkeeper.bench.results.report.pictures import curve, front, styles, trade_offs
from batchkeeper.bench.results.report.svg import COLOURS
from batchkeeper.bench.results.runs import Latencies, Run
from batchkeeper.ops.errors import InvalidSettingError, UnsupportedError

from . import browser
from .made import measured, noisy, run, series, variant

pytestmark = pytest.mark.slow

HEADINGS = [
    "Throughput against latency",
    "Faster or slower than the default",
    "Percentiles of the latency",
    "Batches and queues over time",
    "Why batches were sent",
    "CPU per operation",
    "All variants",
    "Batches and counts",
]


class Page(HTMLParser):
    """Collects what a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2" and data.strip():
            self.headings.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def whole() -> Run:
    """A run with everything that a report can show, and with names that need escaping in HTML."""
    rates = {"single": 3e3, "default": 1e4, "max_ops=16, max_delay=1ms": 1.6e4}
    found = noisy({**rates, "etcd3 <b>&": 1e3}, 3, 0.01)
    for each in found.variants[:3]:
        each.rounds = [dataclasses.replace(m, series=series(int(m.rate))) for m in each.rounds]
    found.variants[3].rounds = [
        dataclasses.replace(m, server_cpu=None, causes={}) for m in found.variants[3].rounds
    ]
    found.conditions = {**found.conditions, "warnings": ["it is <not> quiet"]}
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a whole run."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(whole(), file)
    return file


@pytest.fixture(scope="module")
def page(file: Path) -> Page:
    """Its contents."""
    return Page(file.read_text())


def test_nothing_is_fetched(page: Page) -> None:
    """No element names an address outside the page, and no style does."""
    for tag, attributes in page.tags:
        for name in ("src", "href", "data", "poster", "srcset", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, value)
    assert "://" not in re.sub(r"etcd://127\.0\.0\.1:2379", "", page.text)
    assert not re.findall(r"@import|url\((?!#)", page.text)
    assert page.all("script") == []


def test_all_parts_are_there(page: Page) -> None:
    """Each picture has a heading, two drawings with a text alternative, and a table."""
    assert page.headings == HEADINGS
    drawings = page.all("svg")
    assert [drawing["class"] for drawing in drawings] == ["wide", "narrow"] * 6
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert len(drawing["aria-label"] or "") > 80
    assert len(page.all("details")) == 6
    assert len(page.all("table")) == 8


def test_the_advice_and_doubts_are_at_the_top(page: Page) -> None:
    """They stand before the first picture, with the line to paste."""
    top = page.text[: page.text.index("<svg")]
    assert "BatchingConfig(max_ops=16, max_delay=0.001)</code>" in top
    assert "It is &lt;not&gt; quiet." in top
    assert "The default is " in top
    assert "etcd://127.0.0.1:2379, version 3.6.1" in top


def test_names_are_escaped(page: Page) -> None:
    """A name with the signs of HTML is text everywhere."""
    assert page.all("b") == []
    assert "etcd3 &lt;b&gt;&amp;" in page.text


def test_names_inside_pictures_occur_once(page: Page) -> None:
    """Two pictures with the same name would take each other's clips and signs."""
    names = Counter(a["id"] for _, a in page.tags if a.get("id"))
    assert names
    assert [name for name, times in names.items() if times > 1] == []
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', page.text))
    assert used
    assert used <= set(names)


def test_colours_follow_the_page(page: Page) -> None:
    """Pictures name variables only, each of which has a value for light and one for dark."""
    style, rest = page.text.split("</style>", 1)
    assert re.findall(r"(?:fill|stroke): #(?!fff)", rest) == []
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")
    for variable in set(re.findall(r"var\((--\w+)\)", rest)):
        assert f"{variable}:" in light
        assert f"{variable}:" in dark


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_can_be_seen_on_both_pages() -> None:
    """Dark colours on a dark page have the contrast of three to one that graphics need."""
    for dark in COLOURS.values():
        assert (luminance(dark) + 0.05) / (luminance("#161616") + 0.05) >= 3


def test_looks_differ_by_more_than_colour() -> None:
    """No two variants look the same, and those that matter share neither colour, sign nor dash."""
    rates = {f"max_ops={n}": 1e3 * n for n in range(1, 20)}
    found = styles(noisy({"single": 5e2, "default": 9e3, **rates, "etcd3": 10.0}, 3))
    assert list(found)[:2] == ["default", "single"]
    assert "etcd3" in found
    assert len({(style.colour, style.marker) for style in found.values()}) == 22
    assert len({(style.colour, str(style.dash)) for style in found.values()}) == 22
    leading = [style for style in found.values() if style.matters]
    assert len(leading) == 7
    for kind in ("colour", "marker", "dash"):
        assert len({getattr(style, kind) for style in leading}) == 7


def test_the_front_has_what_nothing_beats() -> None:
    """By rate; of two equals, one is enough."""
    points = [(10, 1.0), (20, 2.0), (15, 3.0), (30, 9.0), (20, 2.0)]
    found = run(
        *(variant(f"max_ops={n}", [rate] * 3, p99=p99) for n, (rate, p99) in enumerate(points, 1)),
        variant("etcd3", [100.0] * 3, p99=0.5),  # No choice for a caller of this client.
    )
    assert front(found, trade_offs(found)) == ["max_ops=1", "max_ops=2", "max_ops=4"]
    assert front(run(), {}) == []


def test_curves_have_all_rounds_and_end_at_the_last_operation() -> None:
    """Rounds are merged, and no percentile is shown that has no operation above it."""
    found = variant("default", [1e3] * 3)
    points = curve(found)
    assert [p for p, _ in points] == sorted(p for p, _ in points)
    assert points[0][0] >= 50
    assert points[-1][0] < 100 - 100 / 4000
    assert dict(points)[99.0] == pytest.approx(0.004, rel=0.01)
    found.rounds[0] = measured(0, 1e3, p50=0.1, p99=0.4)
    assert dict(curve(found))[99.0] > 0.1
    assert curve(variant("default", [0.0])) == ()


@pytest.mark.parametrize(
    "found",
    [
        run(),
        run(variant("default", [])),
        run(variant("default", [0.0]), variant("single", [0.0])),
        run(variant("etcd3", [1e3], causes={}, batches=0, batched=0), broken="no server"),
    ],
    ids=["empty", "no rounds", "no operations", "one round of a peer, broken"],
)
def test_a_run_with_little_has_a_report(found: Run, tmp_path: Path) -> None:
    """The report shows the partial results, and the reason why there is no advice."""
    write_report(found, tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert "Nothing is advised" in page.text
    assert "All variants" in page.headings
    assert "nan" not in page.text.lower().replace("finance", "")


def test_a_damaged_histogram_is_named(tmp_path: Path) -> None:
    """A file whose histogram was cut is bad input."""
    damaged = Latencies(10, {"p99": 0.1}, "HISTFAAAAB")
    found = run(variant("default", [1e3, 1e3], latencies={"all": damaged}))
    with pytest.raises(InvalidSettingError, match="a histogram is damaged"):
        write_report(found, tmp_path / "report.html")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the error says how to install it."""
    monkeypatch.delitem(sys.modules, "batchkeeper.bench.results.report.pictures", raising=False)
    monkeypatch.delattr("batchkeeper.bench.results.report.pictures", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'batchkeeper\[bench,plots\]'"):
        check_extra()


@pytest.mark.browser
def test_a_browser_shows_it(file: Path, tmp_path: Path) -> None:
    """At the widths of a screen and of a phone, light and dark, and on paper."""
    path = browser.find()
    assert path is not None
    with browser.chromium(path, tmp_path / "profile") as tab:
        for width, shown in ((1280, "wide"), (360, "narrow")):
            for dark in (False, True):
                tab.open(file, width, dark=dark)
                assert tab.requested() == [file.as_uri()]
                assert tab.complaints() == []
                # Nothing is wider than the screen.
                assert tab.ask("document.documentElement.scrollWidth") <= width
                sizes = tab.ask(SIZES)
                assert [size[0] for size in sizes if size[1]] == [shown] * 6
                assert all(
                    min(width - 40, 700) < size[1] < width and size[2] > 150
                    for size in sizes
                    if size[0] == shown
                )
                inside = tab.ask(OUTSIDE)
                assert inside == []
                paper = tab.ask("getComputedStyle(document.body).backgroundColor")
                assert (paper == "rgb(22, 22, 22)") is dark
        tab.printed(tmp_path / "report.pdf")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


SIZES = """
[...document.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  return [svg.getAttribute("class"), box.width, box.height];
})
"""

# Visible texts that reach out of their picture.
OUTSIDE = """
[...document.querySelectorAll("svg text")].filter(text => {
  const box = text.getBoundingClientRect(), svg = text.closest("svg").getBoundingClientRect();
  return box.width && (box.left < svg.left - 1 || box.right > svg.right + 1 ||
                       box.top < svg.top - 1 || box.bottom > svg.bottom + 1);
}).map(text => text.textContent)
"""
