"""Elastic jobs: an agent on each machine starts ordinary scripts as the workers of a group, and keeps it going.

The door of the room, for scripts: `record` and `expires`. `understudy run` is the agent.
"""

from runtime.elastic.expiring import expires
from runtime.elastic.recording import record

__all__ = ["expires", "record"]
