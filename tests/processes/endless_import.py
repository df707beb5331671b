"""A module whose import does not end."""

import signal

while True:
    signal.pause()
