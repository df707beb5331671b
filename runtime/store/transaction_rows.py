"""Transactions and their results as plain rows: how nodes send them to each other.

As messages, each of their parts would be sent with the path of its class, and be looked through and
checked one by one; a claim of a name has four such parts. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import cbor2

from actors import errors
from actors.errors import StoreError
from runtime.store.interface import (
    Compare,
    Delete,
    Entry,
    Get,
    Operation,
    Put,
    Response,
    Transaction,
    TransactionOutcome,
    TransactionResult,
)
from runtime.store.rows import read_rows

DEPTH: Final = 5
"""Containers in containers that a row has: the batch, a transaction, a branch, an operation; and
one more, so that what is too deep is refused by its type.
"""

_DELETED: Final = False
"""What the row of a deletion has in the place of the value."""


def pack_transactions(batch: Sequence[Transaction]) -> bytes:
    """Return transactions as bytes."""
    return cbor2.dumps(
        [
            [
                [[one.key, one.field, one.expected] for one in transaction.compare],
                [_operation_row(one) for one in transaction.then],
                [_operation_row(one) for one in transaction.otherwise],
            ]
            for transaction in batch
        ]
    )


def unpack_transactions(packed: bytes) -> list[Transaction]:
    """Return the transactions that a peer has packed. Raises ValueError for bytes that are none."""
    try:
        return [
            Transaction(
                tuple([Compare(key, field, expected) for key, field, expected in compare]),
                tuple([_operation(*row) for row in then]),
                tuple([_operation(*row) for row in otherwise]),
            )
            for compare, then, otherwise in read_rows(packed, DEPTH)
        ]
    except (TypeError, ValueError) as error:
        raise ValueError(f"the bytes are not packed transactions: {error}") from None


def pack_outcomes(outcomes: Sequence[TransactionOutcome]) -> bytes:
    """Return the outcomes of transactions as bytes. Of an error, its class and text are kept."""
    return cbor2.dumps([_outcome_row(one) for one in outcomes])


def unpack_outcomes(packed: bytes) -> list[TransactionOutcome]:
    """Return the outcomes that a store's node has packed. Raises ValueError for bytes that are
    none.
    """
    try:
        return [_outcome(*row) for row in read_rows(packed, DEPTH)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"the bytes are not packed outcomes of transactions: {error}") from None


def refusal(kind: str, text: str) -> Exception:
    """Build the error again with which a store has refused one of several transactions."""
    cls = vars(errors).get(kind)
    if isinstance(cls, type) and issubclass(cls, StoreError):
        return cls(text)
    return {"ValueError": ValueError, "TypeError": TypeError}.get(kind, StoreError)(text)


def _operation_row(operation: Operation) -> list[object]:
    kind = type(operation)
    if kind is Put:
        put = cast("Put", operation)
        return [put.key, put.value, put.lease]
    return [operation.key, _DELETED] if kind is Delete else [operation.key]


def _operation(key: str, value: bytes | bool | None = None, lease: int | None = None) -> Operation:
    if value is None:
        return Get(key)
    if value is _DELETED and lease is None:
        return Delete(key)
    # Whose validators refuse what is no value and no lease.
    return Put(key, cast("bytes", value), cast("int", lease))


def _outcome_row(outcome: TransactionOutcome) -> list[object]:
    if not isinstance(outcome, TransactionResult):
        return [type(outcome).__name__, str(outcome)]
    return [
        outcome.succeeded,
        outcome.revision,
        [
            [one.key, one.value, one.create_revision, one.mod_revision, one.version, one.lease]
            if type(one) is Entry
            else one
            for one in outcome.responses
        ],
    ]


def _outcome(
    succeeded: bool | str, revision: int | str, responses: Sequence[object] | None = None
) -> TransactionOutcome:
    if responses is None:
        if type(succeeded) is not str or type(revision) is not str:
            raise TypeError("a refusal has the name of a class, and a text")
        return refusal(succeeded, revision)
    if type(succeeded) is not bool or type(revision) is not int:
        raise TypeError("a result says whether it succeeded, and at which revision")
    return TransactionResult(succeeded, revision, tuple([_response(one) for one in responses]))


def _response(row: object) -> Response:
    if row is None or type(row) is bool:
        return row
    key, value, *numbers = cast("list[Any]", row)
    if (
        type(key) is not str
        or type(value) is not bytes
        or len(numbers) != 4
        or any(type(number) is not int for number in numbers)
    ):
        raise TypeError("an entry is a key, a value and four numbers")
    return Entry(key, value, *numbers)
