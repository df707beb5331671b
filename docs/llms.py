"""Write docs/llms.txt from the pages: `python docs/llms.py`.

The site has it at its root, for programs that read documentation (https://llmstxt.org): each page
with its title and first sentence, in the order of the site. A test checks that it is current.
"""

from __future__ import annotations

import re
from pathlib import Path

from runtime.command_line import explain

DOCS = Path(__file__).resolve().parent
FILE = DOCS / "llms.txt"


def entries(page: Path) -> list[Path]:
    """The pages that the tables of contents of a page name, in their order."""
    found = []
    for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.strip() and not line.startswith(":"):
                found.append((page.parent / line.strip()).with_suffix(".md"))
    return found


def title(text: str) -> str:
    """The heading of a page."""
    return re.findall(r"^# (.+)$", text, re.MULTILINE)[0]


def first_sentence(text: str) -> str:
    """What a page begins with, without links."""
    body = text.partition("# ")[2].partition("\n")[2]
    prose = re.sub(r"^(`{3,}|:{3,}).*?^\1$", "", body, flags=re.MULTILINE | re.DOTALL)
    for part in prose.split("\n\n"):
        if re.match(r"\s*[`*\w]", part) and not part.lstrip().startswith("1."):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(part.split()))
            return re.split(r"(?<=[.!?])\s(?=[A-Z`])", plain)[0].rstrip(":")
    return ""


def text() -> str:
    """The whole file."""
    root = DOCS / "index.md"
    lines = [f"# {title(root.read_text())}", "", f"> {summary(root.read_text())}"]
    for section in entries(root):
        lines += ["", f"## {title(section.read_text())}", ""]
        for page in (section, *entries(section)):
            said = page.read_text()
            address = page.relative_to(DOCS).with_suffix(".html")
            lines.append(f"- [{title(said)}]({address}): {first_sentence(said)}".rstrip(": "))
            if str(address) == "failures/errors.html":
                lines += errors()
    return "\n".join(lines) + "\n"


def errors() -> list[str]:
    """The page of each error, which is made when the site is built."""
    return [
        f"- [{name}]({explain.page_of(name)}): {explain.first_sentence(text)}"
        for name, text in explain.sections().items()
    ]


def summary(root: str) -> str:
    """The first paragraph of the home page."""
    return " ".join(root.partition("\n\n")[2].partition("\n\n")[0].split())


if __name__ == "__main__":
    FILE.write_text(text())
