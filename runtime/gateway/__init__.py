"""The HTTP gateway: actors called from other languages and from curl, with the same outcomes.

`understudy gateway` serves it; `application` is the ASGI application for programs that serve it
themselves.
"""

from __future__ import annotations

from runtime.gateway.application import HttpGateway, application
from runtime.gateway.requests import RequestLimits

__all__ = ["HttpGateway", "RequestLimits", "application"]
