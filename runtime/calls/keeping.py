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
    """Stands before the sink of a job whose result stays here: keeps the outcome in `anchor`, and passes on that there is one."""

    def __init__(self, values: OwnValues, codec: Codec, anchor: Anchor, sink: Sink) -> None:
        self._values = values
        self._codec = codec
        self._anchor = anchor
        self._sink = sink

    def value(self, job: Job, value: object) -> None:
        """See `Sink.value`."""
        try:
            size = self._values.resolve(self._anchor, value)
        except EncodeError as error:
            name = f"{job.cell.address.name}.{job.definition.name}"
            self.refused(job, ReplyEncodeError(f"{name} ran, but its result cannot be sent: {error}"))
        else:
            self._sink.value(job, size)

    def raised(self, job: Job, error: BaseException) -> None:
        """See `Sink.raised`."""
        self._fail(job, *raised_by_method(error, self._codec.encodable))
        self._sink.raised(job, error)

    def refused(self, job: Job, error: CallError) -> None:
        """See `Sink.refused`."""
        if not self._anchor.is_open:
            self._fail(job, *described(error, self._codec.encodable))
        self._sink.refused(job, error)

    def given_up(self, job: Job, error: CallError) -> None:
        """The caller took the call back: stop it, for all who have the reference."""
        self._fail(job, *described(error, self._codec.encodable))
        job.cancel()

    def _fail(self, job: Job, code: str, plain: Plain) -> None:
        address = job.cell.address
        self._values.fail(self._anchor, Failure(code, plain, address.name, job.definition.name, address.node, address.epoch))


class KeptResults:
    """What jobs have to do with references: results that stay here, and arguments that are references."""

    def __init__(self, table: ReferenceTable, values: OwnValues, codec: Codec) -> None:
        self._table = table
        self._values = values
        self._codec = codec

    def keep(self, job: Job, maker: tuple[str, int], kept: tuple[int, int]) -> None:
        """The result of a job of another node stays here. `kept`: the number of its reference, and the version of the maker's hold."""
        number, version = kept
        anchor = self._table.begin((*maker, number), maker, version, f"{job.cell.address.name}.{job.definition.name}")
        self.keep_in(job, anchor)

    def keep_in(self, job: Job, anchor: Anchor) -> None:
        """The result of a job of this node stays here."""
        job.sink = Keeping(self._values, self._codec, anchor, job.sink)

    @property
    def references_arrived(self) -> bool:
        """True if a reference was read since the last job was prepared."""
        return self._table.read_any

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
