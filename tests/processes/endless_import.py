"""A module whose import does not end."""

import signal
import sys

sys.stdout.write("importing\n")
sys.stdout.flush()
while True:
    signal.pause()
