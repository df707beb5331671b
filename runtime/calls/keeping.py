"""Calls whose results stay where they are made: what becomes of their outcomes there."""

from __future__ import annotations

from actors.errors import CallError, EncodeError, ReplyEncodeError
from runtime.calls.failures import Plain, described, raised_by_method
from runtime.hosting.cell import Job, Sink
from runtime.references.anchors import Anchor
from runtime.references.owned import OwnValues
from runtime.references.table import ReferenceTable
from runtime.references.values import Failure
from runtime.wire.codec import Codec


class Keeping:
    """Stands before the sink of a job whose result stays here: keeps the outcome in `anchor`, and passes on that there is one.

    A value is the outcome of the reference. A failure is that of an attempt: others who have the reference must not be told of it while its
    maker may still fetch a value, so the maker closes the anchor. `tentative` is False where it will not make a call again that raises.
    """

    def __init__(self, values: OwnValues, codec: Codec, anchor: Anchor, sink: Sink, *, tentative: bool) -> None:
        self._values = values
        self._codec = codec
        self._anchor = anchor
        self._sink = sink
        self._tentative = tentative

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        if job.cancelled:
            # It came too late: its maker makes the call anew, or has given it up.
            self._sink.value(job, 0)
            return
        try:
            size = self._values.resolve(self._anchor, value)
        except EncodeError as error:
            name = f"{job.cell.address.name}.{job.definition.name}"
            self.refused(job, ReplyEncodeError(f"{name} ran, but its result cannot be sent: {error}"))
        else:
            self._sink.value(job, size)

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`."""
        self._attempted(job, *raised_by_method(error, self._codec.size_of))
        if not self._tentative:
            self._anchor.close()
        self._sink.raised(job, error)

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        self._attempted(job, *described(error, self._codec.size_of))
        self._sink.refused(job, error)

    def given_up(self, job: Job, error: CallError) -> None:
        """The caller took the call back: stop it, for all who have the reference."""
        self._attempted(job, *described(error, self._codec.size_of))
        job.cancel()

    def _attempted(self, job: Job, code: str, plain: Plain) -> None:
        address = job.cell.address
        self._anchor.attempted(Failure(code, plain, address.name, job.definition.name, address.node, address.epoch))


class KeptResults:
    """What jobs have to do with references: results that stay here, and arguments that are references."""

    def __init__(self, table: ReferenceTable, values: OwnValues, codec: Codec) -> None:
        self._table = table
        self._values = values
        self._codec = codec

    def keep(self, job: Job, maker: tuple[str, int], kept: tuple[int, int], *, tentative: bool) -> None:
        """The result of a job of another node stays here. `kept`: the number of its reference, and the version of the maker's hold;
        `tentative`: see `Keeping`.
        """
        number, version = kept
        anchor = self._table.begin((*maker, number), maker, version, f"{job.cell.address.name}.{job.definition.name}")
        self._keep_in(job, anchor, tentative=tentative)

    def keep_in(self, job: Job, anchor: Anchor) -> None:
        """The result of a job of this node stays here."""
        self._keep_in(job, anchor, tentative=True)

    def _keep_in(self, job: Job, anchor: Anchor, *, tentative: bool) -> None:
        job.sink = Keeping(self._values, self._codec, anchor, job.sink, tentative=tentative)

    @property
    def references_arrived(self) -> bool:
        """True if a reference was read since the last job was prepared."""
        return self._table.read_any

    def forget_arrivals(self) -> bool:
        """The last request that was read becomes a job later: whether a reference was read with it."""
        arrived, self._table.read_any = self._table.read_any, False
        return arrived

    def remember_arrivals(self, arrived: bool) -> None:
        """That request becomes a job now."""
        self._table.read_any = arrived

    def prepare(self, job: Job) -> None:
        """Its arguments may be references: those that the method wants as values are fetched before it starts."""
        self._table.read_any = False
        job.needs = job.definition.by_value.needs(job.args, job.kwargs)


def caller_gone(job: Job) -> None:
    """Whoever made the call is no more: nobody waits for its result, unless it stays here for others."""
    if not isinstance(job.sink, Keeping):
        job.cancel()


def taken_back(job: Job) -> None:
    """Whoever made the call says that it should stop."""
    if isinstance(job.sink, Keeping):
        job.sink.given_up(job, CallError(f"{job.cell.address.name}.{job.definition.name} was taken back by its caller"))
    else:
        job.cancel()
