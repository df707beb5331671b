"""A guardian for the workers of an agent of torch, which does not have one: they end with their agent, in whatever way that ends."""

from __future__ import annotations

import os

from runtime.elastic import guardian
from runtime.elastic.guarding import Guarded
from runtime.environment import Environment


class Guard(Guarded):
    """Whatever this process starts from now on carries the mark: torch gives its own environment to its workers."""

    def __init__(self, environment: Environment, mark: str, seconds: float) -> None:
        super().__init__(environment, mark, seconds)
        os.environ[guardian.MARK] = mark

    async def aclose(self) -> None:
        """Have everything killed that carries the mark still, and end the guardian. Bounded."""
        os.environ.pop(guardian.MARK, None)
        await super().aclose()


def is_guarded() -> bool:
    """Whether this process is itself guarded by somebody, who looks after all that it starts."""
    return guardian.MARK in os.environ
