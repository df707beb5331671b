"""`python -m understudy` is the command `understudy`."""

from runtime.command_line.main import run

run()
