"""Draw docs/start/demo.svg, the time line of a demonstration: `python docs/demo_picture.py`.

What it draws is docs/start/demo.json, which is what `understudy demo --json` printed. The picture
follows the reader's colour scheme.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "start"
FILE = FOLDER / "demo.svg"

ROW, TOP, LEFT, WIDTH = 28, 44, 84, 760
"""In pixels: between two events, above the first, left of the line, of the whole picture."""

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #24292f }
.time { text-anchor: end; font-variant-numeric: tabular-nums; fill: #57606a }
.took { fill: #57606a }
line { stroke: #d0d7de; stroke-width: 2 }
circle { fill: #57606a }
.killed { fill: #cf222e } .detected { fill: #bf8700 }
.rerun, .restarted, .joined, .done { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .time, .took { fill: #8d96a0 } line { stroke: #30363d }
  circle { fill: #8d96a0 } .killed { fill: #f85149 } .detected { fill: #d29922 }
  .rerun, .restarted, .joined, .done { fill: #3fb950 }
}
"""


def event(index: int, one: dict[str, Any]) -> str:
    """One row: when, a dot in the colour of its kind, what, and how long that took."""
    y = TOP + index * ROW
    took = one["milliseconds"]
    after = f'<tspan class="took">  {took:.0f} ms</tspan>' if took is not None else ""
    return (
        f'<text class="time" x="{LEFT - 16}" y="{y + 5}">{one["at"]:.2f} s</text>'
        f'<circle class="{one["kind"]}" cx="{LEFT}" cy="{y}" r="6"/>'
        f'<text x="{LEFT + 16}" y="{y + 5}" xml:space="preserve">{html.escape(one["text"])}'
        f"{after}</text>"
    )


def picture() -> str:
    """The whole picture."""
    told = json.loads((FOLDER / "demo.json").read_text())
    events = told["timeline"]
    bottom = TOP + (len(events) - 1) * ROW
    rows = "\n".join(event(index, one) for index, one in enumerate(events))
    result = (
        f"{told['seconds_single']:.1f} s in a single process, {told['seconds_undisturbed']:.1f} s "
        f"undisturbed, {told['seconds']:.1f} s with the kills: {told['lost']} pieces lost, "
        f"{told['twice']} twice"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 48}" '
        f'role="img" aria-label="Time line of understudy demo">\n<style>{STYLE}</style>\n'
        f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}"/>\n'
        f'<text x="{LEFT + 16}" y="22">{told["files"]} files indexed while nodes are killed</text>'
        "\n"
        f'{rows}\n<text x="{LEFT + 16}" y="{bottom + 36}">{result}</text>\n</svg>\n'
    )


if __name__ == "__main__":
    FILE.write_text(picture())
