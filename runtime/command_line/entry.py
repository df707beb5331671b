"""Where the script `understudy` begins. It handles Ctrl-C before it loads the commands.

This module and those that Python loads before it import next to nothing, because an interrupt that
comes before this one is loaded still shows a traceback where no module catches it.
"""

import os

try:
    from runtime.command_line.interrupts import leave, leave_at_interrupts
except KeyboardInterrupt:
    # What `leave` does, which could not be imported.
    os._exit(130)


def run(prog_name: str | None = None) -> None:
    """Run the command that the arguments of this process name, and end the process. `prog_name`:
    how its help calls it, otherwise by the name of the script.
    """
    try:
        leave_at_interrupts()
        from runtime.command_line import main
    except KeyboardInterrupt:
        leave()
        return
    main.run(prog_name)
