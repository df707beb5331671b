"""`understudy demo` with every other file, which takes half as long: `python -m tests.command_line.half_demo demo`."""

from __future__ import annotations

from unittest.mock import patch

from runtime.command_line.main import main
from runtime.demonstration import story

if __name__ == "__main__":
    with patch.object(story, "source_files", return_value=story.source_files()[::2]):
        main()
