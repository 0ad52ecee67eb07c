"""Pictures of Matplotlib as SVG inside a page: its colours, its names, its titles.

A page with several pictures needs names that occur once, colours that follow the page's theme, and
nothing of the file's head, which names addresses.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from html import escape
from typing import Any, Final

# Matplotlib does not know the page's variables. So it draws in colours that nothing else has, and
# the variables take their places afterwards.
INK: Final = "#010203"
GRID: Final = "#040506"

#: Colours that people with any colour vision can tell apart (Okabe and Ito), for light and dark
#: pages. Their yellow is left out, because it is too light for a white page.
COLOURS: Final[Mapping[str, str]] = {
    "#0072b2": "#5fb4f0",
    "#d55e00": "#ff8f4d",
    "#009e73": "#2fd0a5",
    "#cc79a7": "#e6a3c8",
    "#e69f00": "#ffc24d",
    "#56b4e9": "#8fd0f7",
}

#: Settings of Matplotlib. Text stays text, which can be searched and read aloud.
STYLE: Final[Mapping[str, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.color": INK,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 3,
    "patch.linewidth": 0,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

_NAMES: Final = {INK: "ink", GRID: "line"}


def variables(*, dark: bool) -> str:
    """Return the declarations of the colours of pictures, for a style sheet."""
    return " ".join(f"--c{number}: {pair[dark]};" for number, pair in enumerate(COLOURS.items()))


def inline(figure: Any, name: str, label: str, titles: Mapping[str, str]) -> str:
    """Return a figure as an element of a page.

    Args:
        figure: the figure of Matplotlib.
        name: a name that no other picture of the page has.
        label: what the picture says, for those who do not see it.
        titles: texts that appear when the pointer rests on a part, by the part's group name.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg")
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    text = re.sub(
        r"<svg[^>]*>",
        f'<svg class="{name.rpartition("-")[2]}" {box[0]} role="img" '
        f'aria-label="{escape(label, quote=True)}">',
        text,
        count=1,
    )
    text = text.replace("xlink:href", "href")
    for part, title in titles.items():
        text = text.replace(f'<g id="{part}">', f'<g id="{part}"><title>{escape(title)}</title>')
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    numbers = {colour: f"c{number}" for number, colour in enumerate(COLOURS)}
    for colour, variable in {**_NAMES, **numbers}.items():
        text = text.replace(colour, f"var(--{variable})")
    # The page chooses the letters.
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    return re.sub(r"\n\s*", "\n", text)
