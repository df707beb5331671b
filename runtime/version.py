"""The version of the distribution, in the one place that the build, the handshake and `understudy
--version` read.
"""

__version__ = "0.1.0"
