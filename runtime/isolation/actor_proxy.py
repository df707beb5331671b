"""The actor proxy: takes the place of an isolated actor on its node.

To the host it is an actor like any other, with the methods of the isolated one: each call is passed
on and answered with its outcome in the process. A task of the proxy's own nursery manages the
process. So the process ends with the actor, and when it ends by itself, so does the actor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, ClassVar, cast

import attrs
import trio

from actors.actor import Actor, Ended, Ignore
from actors.call_context import call_context
from actors.errors import (
    ActorDiedError,
    ActorNotFoundError,
    CallError,
    ConnectionLostError,
    NodeDiedError,
    NodeDrainingError,
    NodeUnreachableError,
    RemoteError,
)
from actors.messages import import_path
from actors.method import InThread, MethodDefinition
from actors.options import NO_CALL_OPTIONS, SpawnOptions
from actors.own_logger import own_logger
from actors.supervision import ExitReason
from runtime.calls.error_codec import PassedOnError
from runtime.error_to_raise import ErrorToRaise
from runtime.hosting.actor_state import ActorState, gives_state
from runtime.hosting.cell import (
    ActorCell,
    EndedElsewhereError,
    RefusedElsewhereError,
    StartFailedElsewhereError,
)
from runtime.hosting.chains import Chain
from runtime.isolation.child_process import ChildProcessHandle
from runtime.isolation.messages import ISOLATED_ACTOR, LaunchRequest

END_SECONDS = 5.0
"""How many seconds a call whose actor has ended may be held back."""


logger = own_logger("understudy.actors")


Prepare = Callable[[LaunchRequest], Coroutine[Any, Any, ChildProcessHandle]]
"""Starts a process for a launch request."""


@attrs.frozen
class ForwardedMethod(MethodDefinition):
    """A method of an isolated actor; running it passes the call on to the process."""

    def run(
        self,
        instance: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        in_thread: InThread,
    ) -> Coroutine[Any, Any, object]:
        """Return the coroutine that passes the call to the actor's process, which checks whether
        the arguments fit.
        """
        assert isinstance(instance, ActorProxy)
        return instance.pass_on(self.name, args, kwargs)

    def items(
        self, instance: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> AsyncGenerator[object, None]:
        """Return a generator of the items that the actor's process sends."""
        assert isinstance(instance, ActorProxy)
        return instance.pass_on_items(self.name, args, kwargs)


def forwarded(methods: Mapping[str, MethodDefinition]) -> dict[str, MethodDefinition]:
    """Return the methods as forwarded methods. The options of a call are applied before it is
    forwarded.
    """
    return {
        name: ForwardedMethod(
            name=name,
            function=definition.function,
            idempotent=definition.idempotent,
            concurrent=definition.concurrent,
            stream=definition.stream,
            options=NO_CALL_OPTIONS,
            reentrant=definition.reentrant,
            http=definition.http,
            allow=definition.allow,
        )
        for name, definition in methods.items()
    }


class ActorProxy(Actor):
    """Takes the place of an isolated actor of another class, which `configure` sets. Its
    constructor takes the isolated actor's arguments.
    """

    batch_methods: ClassVar[Mapping[str, MethodDefinition]] = {}
    """The methods of `item_batches`, which the proxy passes on."""
    _cls: type[Actor]
    _options: SpawnOptions
    _prepare: Prepare
    _waiting: Callable[[], Chain | None]

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._args = args
        self._kwargs = kwargs
        self._process: ChildProcessHandle | None = None
        self._begun = trio.Event()
        self._failure: ErrorToRaise | None = None
        self._chain = ""
        self._call_context = ""
        self._stopping = False
        self._stopped = False
        self._notifying: tuple[int, trio.Event] | None = None
        """The watch whose notice is on its way to the process, and the event that is set when
        `on_ended` has returned.
        """

    def configure(
        self,
        cls: type[Actor],
        options: SpawnOptions,
        prepare: Prepare,
        waiting: Callable[[], Chain | None],
    ) -> None:
        """Set the class and options of the isolated actor; called before the constructor.
        `waiting()` returns the chain for a call made in the running task.
        """
        self._waiting = waiting
        self._cls = cls
        self._options = options
        self._prepare = prepare

    @property
    def pid(self) -> int:
        """The id of the process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def has_process(self) -> bool:
        """True from the start of the process until it, or the actor in it, has ended."""
        return self._process is not None and self._process.reason is None

    async def stacks(self) -> dict[str, Any]:
        """The stacks in the actor's process; see `ChildProcessHandle.stacks`."""
        if self._process is None:
            return {"silent": "it has not started yet", "tasks": [], "threads": []}
        return await self._process.stacks()

    async def state(self) -> ActorState:
        """Ask the process for the state that the actor shows; see `ActorStates.read`."""
        shows = gives_state(self._cls)
        if self._process is None:
            return ActorState(problem="its process has not started yet" if shows else "")
        if not shows:
            return ActorState(problem=self._process.why_stopped())
        return await self._process.state()

    async def profile(self, seconds: float, rate: int) -> bytes:
        """Sample the stacks of the actor's process for `seconds`, `rate` times a second. Returns
        the encoded profile, empty if the process has not started yet.
        """
        return b"" if self._process is None else await self._process.profile(seconds, rate)

    def why_stopped(self) -> str:
        """Say that the actor's process was stopped by a signal; see
        `ChildProcessHandle.why_stopped`.
        """
        return "" if self._process is None else self._process.why_stopped()

    async def breakpoints(self) -> dict[str, Any]:
        """The breakpoints at which the actor waits. Raises CallError."""
        assert self._process is not None
        return await self._process.breakpoints()

    async def debug(self, number: int) -> dict[str, Any]:
        """Open a debugger of a failure of the actor, by its number there. Raises CallError."""
        assert self._process is not None
        return await self._process.debug(number)

    async def debug_command(self, number: int, line: str | None, seconds: float) -> dict[str, str]:
        """Send a line to a debugger in the actor's process. Raises CallError."""
        assert self._process is not None
        return await self._process.debug_command(number, line, seconds)

    async def on_start(self) -> None:
        """Start the process and the actor in it. Raises `StartFailedElsewhereError`, `Ignore`, or
        the error of the process's start.
        """
        chain = self._waiting()
        self._chain = chain.lines if chain is not None else ""
        self._call_context = call_context.get().text
        # In the actor's nursery: its end, for whatever reason, is the end of the process.
        self.nursery.start_soon(self._manage_process, name=f"process of {self.name}")
        await self._begun.wait()
        if self._failure is not None:
            self._failure.raise_it()

    async def on_stop(self, reason: ExitReason) -> None:
        """Stop the actor in its process. The host bounds the time."""
        # Before the await: the process ends while the request is under way, and that must not count
        # as an end by the actor itself.
        self._stopping = True
        if self._process is not None and self._process.reason is None:
            try:
                await self._process.ask_to_stop(reason)
                self._stopped = True
            except CallError as error:
                logger.info(
                    "the process of %s ended while its actor was being stopped: %s",
                    self.name,
                    error,
                )

    async def on_ended(self, notice: Ended) -> None:
        """Send a notice to the actor, and keep the turn until its `on_ended` has returned. An
        exception of `on_ended` ends the actor in its process.
        """
        assert self._process is not None
        notifying = self._notifying = (notice.watch, trio.Event())
        try:
            lives = await self._process.tell(notice)
        except CallError as error:
            logger.info(
                "%s ended while it handled the notice that %s had ended: %s",
                self.name,
                notice.name,
                error,
            )
            lives = False
        finally:
            self._notifying = None
            notifying[1].set()
        if not lives:
            # As in `_translated`: keep the turn until the host learns of the end, so that waiting
            # calls are not lost.
            await trio.sleep(END_SECONDS)

    async def wait_delivered(self, watch: int) -> None:
        """If a notice of this watch is on its way to the actor, wait until the actor's `on_ended`
        has returned.
        """
        await trio.lowlevel.checkpoint()
        if self._notifying is not None and self._notifying[0] == watch:
            await self._notifying[1].wait()

    async def pass_on(
        self, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Call the isolated actor. Raises its errors in the form that hosts understand."""
        if name == "@items" and len(args) == 3:
            # Items are judged here, on the node: the actor's process has no rules.
            await cast("Any", self._hosted()).judge_items(args[2])
        try:
            return await self._method(name)(*args, **kwargs)
        except CallError as error:
            raise await self._translated(error) from None

    async def pass_on_items(
        self, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> AsyncGenerator[object, None]:
        """Read a stream of the isolated actor, item by item."""
        items = self._method(name)(*args, **kwargs)
        try:
            async for item in items:
                yield item
        except CallError as error:
            raise await self._translated(error) from None
        finally:
            # Does not wait: it only notifies the producer.
            await items.aclose()  # noqa: ASYNC102, ASYNC120

    def _method(self, name: str) -> Any:
        assert self._process is not None
        return getattr(self._process.actor, name)

    async def _translated(self, error: CallError) -> Exception:
        if issubclass(type(error), RemoteError):
            return PassedOnError(cast("RemoteError", error))
        if isinstance(
            error, ActorDiedError | ConnectionLostError | NodeDiedError | NodeUnreachableError
        ):
            # The actor has ended, and in a moment its host learns it and cancels this. Until then
            # the call keeps its turn: the next call would be lost as well, and could not end as one
            # that never ran.
            await trio.sleep(END_SECONDS)
            # Callers know the actor and not its process: for them the actor has ended, and no node.
            why = self._process.reason if self._process is not None else None
            text = (
                f"{self.name} on {self.node.name} ended while the call was running: "
                f"{why or 'ended'}; the call may have taken effect"
            )
            return RefusedElsewhereError(ActorDiedError(text))
        return RefusedElsewhereError(self._by_its_name(error))

    def _by_its_name(self, error: CallError) -> CallError:
        """Return the error that callers get, with the names that they know: in its process the
        actor has another name, and callers know neither that name nor the process's.
        """
        # The second: its process has ended in order, without having taken the call.
        if type(error) in (ActorNotFoundError, NodeDrainingError):
            why = self._process.reason if self._process is not None else None
            return ActorNotFoundError(
                f"{self.name} is no longer on {self.node.name}: {why or 'its process is ending'}"
            )
        text = str(error)
        if text.startswith(f"{ISOLATED_ACTOR}."):
            return type(error)(f"{self.name}{text.removeprefix(ISOLATED_ACTOR)}")
        return error

    async def _manage_process(self) -> None:
        """Manage the process from its start to its end. Raises `EndedElsewhereError` when the actor
        in it ends by itself.
        """
        process: ChildProcessHandle | None = None
        try:
            try:
                process = self._process = await self._prepare(self._launch_request())
                failure = await process.started()
                if failure is not None and not process.is_launched:
                    # Killed before it knew of us, perhaps while it was spare: nothing has run.
                    await process.close(graceful=False)
                    process = self._process = await self._prepare(self._launch_request())
                    failure = await process.started()
                if failure is not None and failure.needless:
                    raise Ignore(failure.what)
                if failure is not None:
                    raise StartFailedElsewhereError(failure.what, failure.trace)
            except Exception as error:
                self._failure = ErrorToRaise(error)
                return
            finally:
                # Only the start needs the arguments, and they may be large.
                self._args, self._kwargs = (), {}
                self._begun.set()
            reason = await process.wait_ended()
            if not self._stopping:
                raise EndedElsewhereError(reason)
        finally:
            if process is not None:
                # shielded and bounded in there
                await process.close(graceful=self._stopped)  # noqa: ASYNC102, ASYNC120

    def _launch_request(self) -> LaunchRequest:
        address = self.address
        path = address.class_path or import_path(self._cls)
        # The members are added when the process takes the request.
        return LaunchRequest(
            class_path=path,
            args=self._args,
            kwargs=self._kwargs,
            options=self._options,
            address=address,
            members=(),
            chain=self._chain,
            context=self._call_context,
        )


def proxy_of(cell: ActorCell | None) -> ActorProxy | None:
    """The proxy of an isolated actor, once it has its attributes; None for any other actor."""
    instance = None if cell is None else cell.ready_instance
    # By `type`: `isinstance` reads `__class__`, which is user code.
    return cast("ActorProxy", instance) if issubclass(type(instance), ActorProxy) else None
