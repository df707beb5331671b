"""Handlers by name: our own, those that a program registers, and those of other distributions.

A distribution adds one by an entry point of the group `understudy.rendezvous`: its name is the
back-end's, its object is a creator.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from types import TracebackType
from typing import Protocol, cast

from actors.own_logger import own_logger
from runtime.environment import Environment, SystemEnvironment
from runtime.rendezvous.interface import RendezvousHandler
from runtime.rendezvous.parameters import RendezvousParameters

GROUP = "understudy.rendezvous"

logger = own_logger("understudy.rendezvous")


class OpenableHandler(RendezvousHandler, Protocol):
    """A handler that can be opened: `async with handler:`. Leaving the block leaves the rendezvous.

    `StoreHandler` is ours; other distributions may provide others.
    """

    async def __aenter__(self) -> RendezvousHandler:
        """Raises `RendezvousConnectionError`."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Leave the rendezvous. Does not close it for others."""
        ...


Creator = Callable[[RendezvousParameters, Environment], OpenableHandler]
"""Makes a handler, not opened yet. Raises ValueError for parameters that it cannot use."""


class Registry:
    """The back-ends that one program may use."""

    def __init__(self) -> None:
        self._creators: dict[str, Creator] = {}
        self._plugins: dict[str, EntryPoint] = {}

    def register(self, backend: str, creator: Creator) -> None:
        """Register a back-end. Raises ValueError for an empty name, and if the name has another
        creator already.
        """
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        if self._creators.setdefault(backend, creator) is not creator:
            raise ValueError(
                f"The rendezvous backend '{backend}' cannot be registered: it is registered with "
                "another creator already."
            )

    def find_plugins(self) -> None:
        """Register the back-ends of other distributions. They are imported on first use; a name
        that is taken stays as it is.
        """
        for plugin in entry_points(group=GROUP):
            if plugin.name in self._creators or plugin.name in self._plugins:
                logger.warning(
                    "ignoring the rendezvous back-end %r of %s: another back-end has this name",
                    plugin.name,
                    plugin.value,
                )
            else:
                self._plugins[plugin.name] = plugin

    def names(self) -> list[str]:
        """The names of all back-ends, sorted."""
        return sorted({*self._creators, *self._plugins})

    def create_handler(
        self, parameters: RendezvousParameters, environment: Environment | None = None
    ) -> OpenableHandler:
        """Return a handler for `parameters.backend`, not opened yet. Raises ValueError, which names
        the back-end with the most similar name, or the option that is wrong, and RuntimeError if
        the creator made a handler of another back-end.
        """
        handler = self._creator(parameters.backend)(parameters, environment or SystemEnvironment())
        if handler.get_backend() != parameters.backend:
            raise RuntimeError(
                f"The rendezvous backend '{handler.get_backend()}' was created, and "
                f"'{parameters.backend}' asked for: its creator is wrong."
            )
        return handler

    def _creator(self, backend: str) -> Creator:
        creator = self._creators.get(backend)
        plugin = self._plugins.get(backend)
        if creator is None and plugin is not None:
            try:
                creator = cast("Creator", plugin.load())
            except Exception as error:
                raise ValueError(
                    f"the rendezvous back-end {backend!r} cannot be loaded from {plugin.value}: "
                    f"{error!r}"
                ) from error
        if creator is None:
            near = difflib.get_close_matches(backend, self.names(), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(self.names())}"
            raise ValueError(f"there is no rendezvous back-end {backend!r}; {hint}")
        return creator


def default_registry() -> Registry:
    """Return a registry with our own back-ends and those of other distributions."""
    # Here, because it loads links and stores, which a program with other back-ends does not need.
    from runtime.rendezvous import back_ends

    registry = Registry()
    registry.register("understudy", back_ends.understudy)
    registry.register("etcd", back_ends.etcd)
    registry.register("static", back_ends.static)
    registry.register("file", back_ends.file)
    registry.find_plugins()
    return registry


def create_handler(
    parameters: RendezvousParameters, environment: Environment | None = None
) -> OpenableHandler:
    """Return a handler of the default registry, to be opened with `async with`. Raises ValueError
    and RuntimeError like `Registry.create_handler`.
    """
    return default_registry().create_handler(parameters, environment)
