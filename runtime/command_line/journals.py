"""`understudy pools --journals`: the journals of maps that a cluster's store keeps, listed and
removed.
"""

from __future__ import annotations

import json

import attrs
import click
import trio

from actors.errors import CallError, JournalError, StoreError
from actors.pools import JournalSummary
from runtime.command_line.connect import ChosenCluster, connect
from runtime.command_line.tables import table
from runtime.command_line.units import age
from runtime.membership.cluster_client import ClusterClient
from runtime.membership.journals import check_journal_name
from runtime.pools.journal_service import JournalClient
from runtime.printable import many, plain

NO_JOURNAL = "there is no journal of this name; `understudy pools --journals` lists them"

COLUMNS = ("name", "what", "items", "size", "driver", "unused")


def journals_of(
    chosen: ChosenCluster,
    older_than: float | None,
    remove: tuple[str, ...],
    *,
    prune: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show them, or remove some. Raises UsageError for options that do not go together."""
    if prune and older_than is None:
        raise click.UsageError("--prune takes --older-than, which says what to remove.")
    if remove and (prune or older_than is not None):
        raise click.UsageError("--remove names a journal: leave out --older-than and --prune.")
    if yes and not prune:
        raise click.UsageError("--yes goes with --prune.")
    if as_json and prune and not yes:
        raise click.UsageError("--json does not ask: give --prune together with --yes.")
    for name in remove:
        try:
            check_journal_name(name)
        except ValueError as error:
            raise click.UsageError(f"{error}.") from None
    if remove:
        _told_of(trio.run(_remove, chosen, remove, 0.0), as_json)
        return
    found = trio.run(_listed, chosen)
    if older_than is not None:
        found = [one for one in found if one.unused is not None and one.unused >= older_than]
    if not prune:
        _show(found, as_json)
        return
    assert older_than is not None
    # What a map works with is not old, whatever a clock says.
    names = tuple(one.name for one in found if one.driver is None)
    if names and not yes:
        _show(found, as_json=False)
        click.confirm(f"remove {many(len(names), 'journal')}?", abort=True)
    _told_of(trio.run(_remove, chosen, names, older_than), as_json)


def _show(found: list[JournalSummary], as_json: bool) -> None:
    rows = [attrs.asdict(one) for one in found]
    if as_json:
        click.echo(json.dumps({"journals": rows}, indent=2))
        return
    for row in rows:
        row["unused"] = None if row["unused"] is None else age(row["unused"])
    click.echo("\n".join(table(COLUMNS, rows)) if rows else "no journals are kept")


def _told_of(removed: dict[str, str], as_json: bool) -> None:
    """Return for each journal "" if it was removed, or why it was not."""
    left = {name: why for name, why in removed.items() if why}
    gone = [name for name, why in removed.items() if not why]
    if as_json:
        click.echo(json.dumps({"removed": gone, "left": left}, indent=2))
    else:
        for name in gone:
            click.echo(f"journal {name} was removed")
        for name, why in left.items():
            click.echo(plain(f"error: journal {name} was not removed: {why}"), err=True)
        if not removed:
            click.echo("no journals were removed: none is that old")
    raise SystemExit(1 if left else 0)


async def _listed(chosen: ChosenCluster) -> list[JournalSummary]:
    async with connect(chosen, "observer") as client:
        try:
            return await _client(client).listed()
        except (StoreError, CallError) as error:
            raise click.ClickException(f"the journals were not listed: {error}") from None


async def _remove(
    chosen: ChosenCluster, names: tuple[str, ...], unused_for: float
) -> dict[str, str]:
    removed: dict[str, str] = {}
    async with connect(chosen, "operator") as client:
        journals = _client(client)
        for name in names:
            try:
                # The age goes along: a map may have begun with the journal since it was listed.
                was_there = await journals.remove(name, unused_for)
                why = "it was used meanwhile" if unused_for else NO_JOURNAL
                removed[name] = "" if was_there else why
            except (StoreError, CallError, JournalError) as error:
                removed[name] = str(error)
    return removed


def _client(client: ClusterClient) -> JournalClient:
    """Ask the node that was dialled."""
    return JournalClient(client.endpoint, client.status["node"], client.status["incarnation"])
