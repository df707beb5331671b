"""Sphinx configuration. `make docs` builds with warnings as errors, and without a network."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import actors
from actors.method import Marked
from runtime.version import __version__

# `@method` makes descriptors, which have no signature of their own: the reference shows the
# functions.
for _class in (actors.Supervisor, actors.DynamicSupervisor):
    for _name, _value in list(vars(_class).items()):
        if isinstance(_value, Marked):
            setattr(_class, _name, _value.definition.function)

project = "Understudy"
author = "The Understudy authors"
project_copyright = "2026, The Understudy authors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib_trio",
    "error_pages",
    "generated",
    "replays",
    "search_words",
]
exclude_patterns = ["_build"]
root_doc = "index"

html_theme = "furo"
# The default, native, underlines the names of classes and modules as if they were links.
pygments_dark_style = "github-dark"
html_title = f"Understudy {release}"
html_extra_path = ["llms.txt"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]

myst_enable_extensions = ["colon_fence", "deflist"]
# Quotation marks and ellipses, but no dashes: `--json` in the help of a command stays what a reader
# types.
smartquotes_action = "qe"
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Docstrings write code in single backticks.
default_role = "code"

# The inventories of other projects come over the network, so only the published build asks for
# them.
if "READTHEDOCS" in os.environ:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "attrs": ("https://www.attrs.org/en/stable/", None),
        "python": ("https://docs.python.org/3", None),
        "trio": ("https://trio.readthedocs.io/en/stable/", None),
    }
