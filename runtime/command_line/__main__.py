"""`python -m runtime.command_line`: the command where its script is not on the path."""

from runtime.command_line.entry import run

run(prog_name="understudy")
