"""Elastic jobs: an agent on each machine starts ordinary scripts as the workers of a group, and
keeps it going.

Scripts import `record` and `expires` from here. `understudy run` is the agent.
"""

from runtime.elastic.expiry import expires
from runtime.elastic.runner import record

__all__ = ["expires", "record"]
