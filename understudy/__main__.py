"""`python -m understudy` is the command `understudy`."""

from runtime.command_line.entry import run

run()
