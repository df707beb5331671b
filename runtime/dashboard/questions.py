"""What a dashboard asks a cluster, topic by topic. Nodes are asked side by side, each has
`NODE_SECONDS` to answer, and one that does not is named in the snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import attrs
import trio

from actors.errors import (
    CallError,
    MethodNotFoundError,
    NotAllowedError,
    StoreError,
    UnderstudyError,
)
from actors.identifiers import NodeId
from actors.messages import import_path
from actors.method import Address
from actors.supervision import ExitReason
from actors.supervisor import DeathReport
from runtime.dashboard.call_view import CallView
from runtime.dashboard.cluster_view import ClusterView, agreed_members
from runtime.dashboard.schedule import ACTOR
from runtime.dashboard.snapshots import MOST_ROWS, TopicSnapshot
from runtime.environment import Environment
from runtime.logs.archive import archived_ends, archived_lines, archived_nodes
from runtime.logs.service import logs_of
from runtime.membership.cluster_client import ClusterClient, unreached
from runtime.observation.conditions import Condition
from runtime.observation.followed_rows import FollowedRows
from runtime.observation.inspection_service import inspection_of
from runtime.observation.node_queries import ask_for_tree
from runtime.observation.open_calls import OpenCall, WaitGraph, read_calls
from runtime.observation.overviews import busiest_first
from runtime.observation.tree import Branch
from runtime.pools.supervisor import PoolSupervisor, PoolView
from runtime.printable import one_of
from runtime.rendezvous.overview import LEFT_OUT as JOBS_LEFT_OUT
from runtime.rendezvous.overview import MOST_RECORDS as MOST_JOB_RECORDS
from runtime.rendezvous.overview import PREFIX as JOBS_PREFIX
from runtime.rendezvous.overview import jobs_of

STOP_SECONDS = 60.0
"""How long an actor may take to stop; the members of a pool may take 30 s."""

BY_DASHBOARD = "by the dashboard"
"""In the exit reason of what a page has stopped."""

NODE_SECONDS = 2.0
"""Seconds in which a node is to answer a dashboard."""

ASKED_FOR_MEMBERS = 3
"""Nodes that are asked who is a member."""

MOST_CALLS = 200
MOST_METHODS = 200
MOST_CYCLES = 20
MOST_VALUES = 200
MOST_BRANCHES = 1000
MOST_LINE = 4000
MOST_JOBS = 100
MOST_LINES = 500
"""Lines of logs, the latest."""

MOST_ENDED = 4
"""Nodes that have ended and of which the last lines are read."""

REMEMBERED_SECONDS = 3600.0
"""Nodes that have ended so lately are among the events when a dashboard starts."""

SAVED_SECONDS = 10.0
"""How old the size of an actor's saved state may be that is shown."""

AHEAD_SECONDS = 2.0
"""By how much two clocks may differ before a page says so."""

MOST_DEATHS = 200
MOST_TEXT = 400
MOST_TRACEBACK = 8192
"""Characters of a traceback, of which the end matters."""

ARCHIVED_SECONDS = 10.0
"""How old may be what is shown of the ends that nodes which have ended wrote to the store."""

Question = Callable[[], Awaitable[TopicSnapshot]]
Rows = dict[str, dict[str, Any]]


@attrs.frozen
class _SavedSize:
    """A node's answer about the saved state of an actor, and its time."""

    at: float
    facts: dict[str, Any] | None


class ClusterQuestions:
    """Asks one cluster through one client. `view` outlives clients: what was known stays known."""

    def __init__(self, client: ClusterClient, environment: Environment, view: ClusterView) -> None:
        self._client = client
        self._environment = environment
        self._view = view
        self.members: list[dict[str, Any]] = list(client.status["members"])
        self._deaths: set[str] | None = None
        self._deaths_at = 0.0
        """When they were looked at last, by the clock of the dashboard."""
        self._archived: list[dict[str, Any]] = []
        self._archived_at = -math.inf
        self._call_view = CallView()
        self._lines: Rows = {}
        self._last_lines: dict[NodeId, int] = {}
        self._ended: set[NodeId] = set()
        self._actors: dict[NodeId, FollowedRows] = {}
        """Of the members: what their overviews list."""
        self._silent: Collection[str] = ()
        """Members that did not answer when they were last asked about the cluster."""
        self._sizes: dict[str, _SavedSize] = {}
        self.heard = environment.now()
        """When any node has answered last."""
        self.store_has_moved = False
        """True once the store is not where this client asks it: then another client is needed."""

    async def ask(self, topic: str) -> TopicSnapshot:
        """The present state of a topic. Raises nothing for what does not answer: it is named."""
        if topic.startswith(ACTOR):
            return await self._actor(topic.removeprefix(ACTOR))
        question: Question = getattr(self, f"_{topic}")
        return await question()

    # What nodes say of themselves.

    async def _cluster(self) -> TopicSnapshot:
        # Those that have answered before are asked for the members, the node of the store first.
        store = self._client.status["store"]["node"]
        first = sorted(self.members, key=lambda one: one["name"] != store)[:ASKED_FOR_MEMBERS]
        chosen = {one["name"] for one in first}
        async with trio.open_nursery() as nursery:
            if not self._view.has_begun:
                nursery.start_soon(self._remember_ends)
            answers, silent = await self._ask_nodes(
                lambda member: self._overview(member, member["name"] in chosen)
            )
        if answers and not any("members" in one for one in answers.values()):
            # None of the chosen has answered: others know who is still there.
            others = [one for one in self.members if one["name"] in answers][:ASKED_FOR_MEMBERS]
            more, _ = await self._ask_nodes(lambda member: self._overview(member, True), others)
            answers.update(more)
        self.members = [dict(one) for one in agreed_members(answers.values(), self.members)]
        identities = {NodeId(one["name"], one["incarnation"]) for one in self.members}
        self._actors = {node: rows for node, rows in self._actors.items() if node in identities}
        self._client.follow(self.members)
        self._silent = silent.keys()
        self.store_has_moved = self._is_elsewhere(answers)
        present = {one["name"] for one in self.members}
        return self._view.observe(
            self._environment.wall_time(),
            self._environment.now(),
            self.members,
            {name: one for name, one in answers.items() if name in present},
            {name: why for name, why in silent.items() if name in present},
        )

    async def _overview(self, member: dict[str, Any], with_members: bool) -> dict[str, Any]:
        """The overview of a node, with `ahead`: by how much its clock is ahead of ours."""
        identity = NodeId(member["name"], member["incarnation"])
        actors = self._actors.setdefault(identity, FollowedRows())
        sent = self._environment.wall_time()
        found: dict[str, Any]
        try:
            found = await self._inspection(member).overview_since(actors.number, with_members)
            found["actors"] = busiest_first(actors.take(found["actors"]))
        except (MethodNotFoundError, NotAllowedError):
            # A node of an earlier version.
            sent = self._environment.wall_time()
            found = await self._inspection(member).overview(with_members)
        found["ahead"] = seconds_ahead(found.get("time"), sent, self._environment.wall_time())
        return found

    async def _remember_ends(self) -> None:
        """Tell the view which nodes have ended lately, as the store has it."""
        since = self._environment.wall_time() - REMEMBERED_SECONDS
        with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
            ended = [
                (one.node.name, one.end)
                for one in await archived_nodes(self._client.store)
                if one.end is not None and one.end.at > since
            ]
            self._view.remember_ends(ended)

    def _is_elsewhere(self, answers: dict[str, Any]) -> bool:
        """A founder that was restarted serves its store as a new incarnation; an external store is
        asked through one node, which may have gone.
        """
        ours = self._client.status["store"]
        place = (ours["node"], ours["incarnation"])
        if ours["kind"] != "embedded":
            present = {(one["name"], one["incarnation"]) for one in self.members}
            return bool(answers) and place not in present
        stores = [one["store"] for one in answers.values() if not one["store"]["away"]]
        return any((one["node"], one["incarnation"]) != place for one in stores)

    async def _ask_nodes(
        self,
        question: Callable[[dict[str, Any]], Awaitable[Any]],
        members: list[dict[str, Any]] | None = None,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        answers: dict[str, Any] = {}
        silent: dict[str, str] = {}

        async def ask(member: dict[str, Any]) -> None:
            try:
                answers[member["name"]] = await question(member)
                self.heard = self._environment.now()
            except CallError as error:
                silent[member["name"]] = self._why(member, error)

        async with trio.open_nursery() as nursery:
            for member in self.members if members is None else members:
                nursery.start_soon(ask, member)
        return answers, silent

    def _inspection(self, member: dict[str, Any]) -> Any:
        service = inspection_of(self._client.endpoint, member["name"], member["incarnation"])
        return service.options(timeout=NODE_SECONDS)

    def _why(self, member: dict[str, Any], error: CallError) -> str:
        if found := unreached(self._client, member):
            return found
        if isinstance(error, TimeoutError):
            return (
                f"nothing came within {NODE_SECONDS:g} s: its process may be stopped, or its event "
                "loop blocked by an actor's method"
            )
        return _line(error)

    # Supervision.

    async def _tree(self) -> TopicSnapshot:
        identities = [NodeId(one["name"], one["incarnation"]) for one in self.members]
        client = self._client
        ends: list[dict[str, Any]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._add_ends, ends)
            tree = await ask_for_tree(
                client.endpoint, client.names, identities, client.status["cluster"]
            )
        branches: Rows = {}
        left_out = 0
        for root in tree.roots:
            left_out += _add_branches(branches, root)
            left_out += sum(branch.children_left_out for branch in root.walk())
        rows, deaths_left_out = death_rows(
            ((death, branch.name) for branch in tree.walk() for death in branch.deaths), ends
        )
        self._note_deaths(rows)
        loose = tree.loose[:MOST_BRANCHES]
        return self._snapshot(
            branches=branches,
            deaths=rows,
            loose={name: {"name": name} for name in loose},
            problems=_problems((*tree.problems, *tree.left_out)),
            totals={
                "tree": {
                    "branches_left_out": left_out,
                    "deaths_left_out": deaths_left_out,
                    "loose_left_out": len(tree.loose) - len(loose),
                }
            },
        )

    async def _add_ends(self, ends: list[dict[str, Any]]) -> None:
        """Add what nodes remember of ends, and what nodes that have ended wrote to the store. Nodes
        that do not answer are named by what is asked beside this.
        """

        def ask(member: dict[str, Any]) -> Awaitable[Any]:
            service = logs_of(self._client.endpoint, member["name"], member["incarnation"])
            answer: Awaitable[Any] = service.options(timeout=NODE_SECONDS).ends()
            return answer

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_archived)
            answers, _ = await self._ask_nodes(ask)
        ends += self._archived
        for reported in answers.values():
            ends += reported

    async def _read_archived(self) -> None:
        now = self._environment.now()
        if now - self._archived_at >= ARCHIVED_SECONDS:
            self._archived_at = now
            with trio.move_on_after(NODE_SECONDS), suppress(StoreError, CallError):
                self._archived = await archived_ends(self._client.store)

    def _note_deaths(self, rows: Rows) -> None:
        known, wall = set(rows), self._environment.wall_time()
        for key, row in rows.items():
            if self._deaths is not None and key not in self._deaths:
                text = f"{row['name']} ended, {row['kind']}: {row['text']}"
                # It was since the last look, whatever the clock of its node says.
                at = min(max(row["at"], self._deaths_at), wall)
                self._view.died(at, row["name"], row["node"] or "", _cut(text, MOST_TEXT))
        self._deaths, self._deaths_at = known, wall

    # Calls.

    async def _calls(self) -> TopicSnapshot:
        answers, silent = await self._ask_nodes(lambda member: self._inspection(member).calls())
        measured, unmeasured = await self._ask_nodes(
            lambda member: self._inspection(member).statistics(MOST_METHODS)
        )
        methods, methods_left_out = self._call_view.observe(
            measured,
            {one["name"]: one["incarnation"] for one in self.members},
        )
        calls = [call for node, report in answers.items() for call in read_calls(node, report)]
        calls.sort(key=lambda call: -(call.seconds or 0.0))
        cycles = [
            cycle for cycle, _ in zip(WaitGraph(calls).cycles(), range(MOST_CYCLES), strict=False)
        ]
        left_out = sum(report["left_out"] for report in answers.values())
        return self._snapshot(
            calls={str(place): _call(call) for place, call in enumerate(calls[:MOST_CALLS])},
            cycles={" ".join(cycle): {"actors": cycle} for cycle in cycles},
            methods=methods,
            problems=_silent({**unmeasured, **silent}),
            totals={
                "calls": {
                    "methods_left_out": methods_left_out,
                    "running": sum(call.state == "running" for call in calls),
                    "waiting": sum(call.state == "waiting" for call in calls),
                    "left_out": max(0, len(calls) - MOST_CALLS) + left_out,
                }
            },
        )

    async def _actor(self, name: str) -> TopicSnapshot:
        place = self._view.place_of(name)
        member = next((one for one in self.members if one["name"] == place), None)
        if member is None:
            member = await self._member_of(name)
        if member is None:
            on = f"on {one_of(self._silent)}, which did not answer, " if self._silent else ""
            return self._snapshot(
                problems=_problems(
                    [
                        f"no node that answers has an actor called {name!r}: it may be {on}moving, "
                        "or have ended; the list of actors shows which there are"
                    ]
                )
            )
        try:
            facts: dict[str, Any] | None = await self._inspection(member).actor(name)
            # Runs the actor's hook, for a second at most.
            state: dict[str, Any] | None = await self._inspection(member).state(name)
            saved = await self._saved(member, name)
        except CallError as error:
            text = f"{name} is on {member['name']}, which does not answer: "
            return self._snapshot(problems=_problems([text + self._why(member, error)]))
        if facts is None:
            text = f"{name} has just left {member['name']}"
            return self._snapshot(problems=_problems([text]))
        calls = read_calls(member["name"], facts)
        own_facts = {key: value for key, value in facts.items() if key != "calls"}
        return self._snapshot(
            facts={name: {**own_facts, "actor_state": state, "saved": saved}},
            calls={str(place): _call(call) for place, call in enumerate(calls[:MOST_CALLS])},
        )

    async def _saved(self, member: dict[str, Any], name: str) -> dict[str, Any] | None:
        """The size of the state that an actor saved last; None from a node of an earlier version.
        Asked less often than the rest: each time the store reads the whole state, or a part.
        """
        now = self._environment.now()
        # Only what is young is kept, and so no more than a few actors.
        self._sizes = {
            one: size for one, size in self._sizes.items() if now - size.at < SAVED_SECONDS
        }
        known = self._sizes.get(name)
        if known is None:
            try:
                size = await self._inspection(member).saved_size(name)
            except (MethodNotFoundError, NotAllowedError):
                size = None
            known = self._sizes[name] = _SavedSize(now, size)
        return known.facts

    async def _member_of(self, name: str) -> dict[str, Any] | None:
        """The member on which a name is, as the store says."""
        try:
            with trio.move_on_after(NODE_SECONDS):
                address = await self._client.names.locate(name)
                return next((one for one in self.members if one["name"] == address.node), None)
        except UnderstudyError:
            # No such name, or a store that is away: the page says that no node has the actor.
            return None
        return None

    # References, pools, the store, elastic jobs.

    async def _references(self) -> TopicSnapshot:
        endpoint = self._client.endpoint

        def ask(member: dict[str, Any]) -> Awaitable[Any]:
            service = endpoint.reference_service(member["name"], member["incarnation"])
            answer: Awaitable[Any] = service.options(timeout=NODE_SECONDS).listing(MOST_VALUES)
            return answer

        answers, silent = await self._ask_nodes(ask)
        values = [
            {"owner": node, **value}
            for node, report in answers.items()
            for value in report["listed"]
        ]
        values.sort(key=lambda value: -(value["size"] or 0))
        listed = min(MOST_VALUES, len(values))
        owners: Rows = {
            node: {"node": node, "values": report["values"], "bytes": report["bytes"]}
            for node, report in list(answers.items())[:MOST_ROWS]
        }
        total = sum(report["values"] for report in answers.values())
        return self._snapshot(
            values={
                f"{one['owner']}\n{one['reference']}": {**one, "age": round(one["age"])}
                for one in values[:listed]
            },
            owners=owners,
            problems=_silent(silent),
            totals={"references": {"values": total, "left_out": total - listed}},
        )

    async def _pools(self) -> TopicSnapshot:
        path = import_path(PoolSupervisor)
        wanted = [Condition("class", "=", path).plain()]
        answers, silent = await self._ask_nodes(
            lambda member: self._inspection(member).actors(wanted, "name", MOST_ROWS)
        )
        incarnations = {one["name"]: one["incarnation"] for one in self.members}
        pools: Rows = {}

        async def ask(node: str, incarnation: int, actor: dict[str, Any]) -> None:
            where = Address(
                actor["name"], node, incarnation, actor["epoch"], path, actor["registered"]
            )
            handle: Any = self._client.endpoint.make_handle(where, PoolSupervisor)
            try:
                view: object = await handle.options(timeout=NODE_SECONDS).view()
            except CallError as error:
                silent[f"{node}, for pool {actor['name']},"] = _line(error)
            else:
                if isinstance(view, PoolView):
                    pools[actor["name"]] = _pool(node, actor["name"], view)

        async with trio.open_nursery() as nursery:
            for node, report in answers.items():
                for actor in report["actors"][: max(0, MOST_ROWS - len(pools))]:
                    nursery.start_soon(ask, node, incarnations[node], actor)
        return self._snapshot(pools=pools, problems=_silent(silent))

    async def _store(self) -> TopicSnapshot:
        began = self._environment.now()
        problems: list[str] = []
        revision = count = None
        try:
            with trio.fail_after(NODE_SECONDS):
                found = await self._client.store.range("nodes/")
            members = [one for one in found.entries if not one.key.startswith("nodes/@")]
            revision, count = found.revision, len(members)
        except trio.TooSlowError:
            problems.append(
                f"the store did not answer within {NODE_SECONDS:g} s: named actors pause at two "
                "thirds of their lease, unnamed ones go on"
            )
        except StoreError as error:
            problems.append(f"the store cannot be asked: {_line(error)}")
        milliseconds = round(1000 * (self._environment.now() - began), 2)
        where = self._client.status["store"]
        return self._snapshot(
            store={
                "store": {
                    **where,
                    "revision": revision,
                    "members": count,
                    "milliseconds": milliseconds if not problems else None,
                }
            },
            problems=_problems(problems),
        )

    async def _jobs(self) -> TopicSnapshot:
        try:
            with trio.fail_after(NODE_SECONDS):
                # One more than is shown, to know whether there are more.
                found = await self._client.store.range(JOBS_PREFIX, MOST_JOB_RECORDS + 1)
        except trio.TooSlowError:
            return self._snapshot(
                problems=_problems(["the store did not answer in time: jobs are not known"])
            )
        except StoreError as error:
            text = f"the store cannot be asked: {_line(error)}"
            return self._snapshot(problems=_problems([text]))
        jobs = jobs_of(found.entries[:MOST_JOB_RECORDS])
        is_cut = len(found.entries) > MOST_JOB_RECORDS
        return self._snapshot(
            jobs=dict(list(jobs.items())[:MOST_JOBS]),
            problems=_problems([JOBS_LEFT_OUT] if is_cut else []),
            totals={"jobs": {"left_out": max(0, len(jobs) - MOST_JOBS)}},
        )

    # Logs.

    async def _logs(self) -> TopicSnapshot:
        def ask(member: dict[str, Any]) -> Awaitable[Any]:
            identity = NodeId(member["name"], member["incarnation"])
            service = logs_of(self._client.endpoint, *identity).options(timeout=NODE_SECONDS)
            answer: Awaitable[Any] = service.read(self._last_lines.get(identity, 0))
            return answer

        identities = {one["name"]: NodeId(one["name"], one["incarnation"]) for one in self.members}
        answers, silent = await self._ask_nodes(ask)
        for node, report in answers.items():
            self._last_lines[identities[node]] = report["last"]
            self._add_lines(identities[node], report["lines"])
        problems = _silent(silent)
        problems.update(_problems(await self._add_ended(set(identities.values()))))
        latest = sorted(self._lines.items(), key=lambda pair: pair[1]["at"])[-MOST_LINES:]
        self._lines = dict(latest)
        return self._snapshot(lines=self._lines, problems=problems)

    async def _add_ended(self, present: set[NodeId]) -> list[str]:
        """Add the last lines of nodes that have ended, as they wrote them to the store; returns
        what could not be read.
        """
        try:
            with trio.fail_after(NODE_SECONDS):
                found = await archived_nodes(self._client.store)
                found = [one for one in found if one.until is not None]
                for one in found[-MOST_ENDED - len(present) :]:
                    if one.node not in present and one.node not in self._ended:
                        lines = await archived_lines(self._client.store, one.node)
                        self._add_lines(one.node, [line.plain() for line in lines])
                        self._ended.add(one.node)
        except (trio.TooSlowError, StoreError):
            return ["the store does not answer: lines of nodes that have ended are missing"]
        self._last_lines = {one: last for one, last in self._last_lines.items() if one in present}
        return []

    def _add_lines(self, node: NodeId, lines: list[dict[str, Any]]) -> None:
        # In the order of our clock: by its own, all lines of a node could be the latest, or none.
        ahead = self._view.ahead_of(node)
        for line in lines:
            self._lines[f"{node.name}\n{node.incarnation}\n{line['number']}"] = {
                "time": line["time"],
                "at": line["time"] - ahead,
                "level": line["level"],
                "node": node.name,
                "actor": line["actor"],
                "method": line["method"],
                "logger": line["logger"],
                "text": _cut(line["text"], MOST_LINE),
            }

    def _snapshot(self, **sections: Rows) -> TopicSnapshot:
        return TopicSnapshot(self._environment.wall_time(), sections)

    # What a dashboard may be allowed to do.

    async def stop_actor(self, name: str, epoch: int) -> str:
        """Stop this epoch of an actor. Raises CallError; ValueError if no node has it, or not in
        this epoch.
        """
        place = self._view.place_of(name)
        member = next((one for one in self.members if one["name"] == place), None)
        member = member or await self._member_of(name)
        if member is None:
            raise ValueError(f"no node that answers has an actor called {name!r}")
        service = self._client.endpoint.node_service(member["name"], member["incarnation"])
        reason = ExitReason("stopped", BY_DASHBOARD)
        ended: object = await service.options(timeout=STOP_SECONDS).stop_actor(name, epoch, reason)
        if not isinstance(ended, ExitReason):
            raise ValueError(
                f"{name} was not stopped: {member['name']} has no actor of this name with epoch "
                f"{epoch}; it has ended, moved or been started again"
            )
        # Also where it did not stop in time and was killed.
        if BY_DASHBOARD not in ended.text:
            raise ValueError(f"{name} with epoch {epoch} had ended before: {_line_of(str(ended))}")
        return f"{name} was stopped"

    async def drain_node(self, name: str) -> str:
        """Ask a node to drain and leave. Raises CallError; ValueError if it is no member."""
        member = next((one for one in self.members if one["name"] == name), None)
        if member is None:
            raise ValueError(f"there is no node called {name!r} in the cluster")
        service = self._client.endpoint.node_service(name, member["incarnation"])
        await service.options(timeout=10.0).leave_cluster()
        return f"{name} drains and leaves"

    async def restart_child(self, supervisor: str, child: str) -> str:
        """Start a child that has no actor. Raises CallError or another UnderstudyError, and
        ValueError for an actor that is no supervisor.
        """
        handle = await self._client.lookup(supervisor)
        # The handle of a class that is imported here knows its methods.
        restart = getattr(handle, "restart_child", None)
        if restart is None:
            raise ValueError(f"{supervisor} is no supervisor")
        with trio.fail_after(20.0):
            await restart(child)
        return f"{child} was started"


@attrs.define
class _Walk:
    """The place of a branch: its depth, and the key of the branch above."""

    branch: Branch
    depth: int
    above: str


def seconds_ahead(theirs: object, sent: float, received: float) -> float:
    """By how many seconds a node's clock is ahead of ours, where `theirs` was read between two
    times of ours; 0 for less than `AHEAD_SECONDS`, and for a node that does not say it.
    """
    if not isinstance(theirs, int | float) or not math.isfinite(theirs):
        return 0.0
    ahead = theirs - (sent + received) / 2
    # Ours may have been set meanwhile.
    return ahead if abs(ahead) > AHEAD_SECONDS + abs(received - sent) else 0.0


def _add_branches(rows: Rows, root: Branch) -> int:
    """Add a tree in the order in which it is drawn; returns how many branches were left out."""
    waiting = [_Walk(root, 0, "")]
    left_out = 0
    while waiting:
        walk = waiting.pop()
        branch = walk.branch
        key = f"{walk.above}\n{branch.id}" if walk.above else branch.name
        if len(rows) >= MOST_BRANCHES:
            left_out += 1
        else:
            rows[key] = {
                "place": len(rows),
                "depth": walk.depth,
                "id": branch.id,
                "name": branch.name,
                "kind": branch.kind,
                "role": branch.role,
                "state": branch.state,
                "problem": branch.problem,
                "singleton": branch.singleton,
                "class": branch.class_path,
                "node": branch.node,
                "epoch": branch.epoch,
                "restarts": branch.restarts,
                "waiting": branch.waiting,
                "age": None if branch.age is None else round(branch.age),
                "strategy": branch.strategy,
                "intensity": branch.intensity,
                "recent": branch.recent_restarts,
                "last": None if branch.last_exit is None else _cut(str(branch.last_exit), 200),
                "supervisor": walk.above.rpartition("\n")[2],
                "parent": walk.above,
            }
        waiting.extend(_Walk(child, walk.depth + 1, key) for child in reversed(branch.children))
    return left_out


def _call(call: OpenCall) -> dict[str, Any]:
    return {
        "actor": call.actor,
        "method": call.method,
        "node": call.node,
        "state": call.state,
        "seconds": None if call.seconds is None else round(call.seconds, 2),
        "left": None if call.left is None else round(call.left, 2),
        "caller": None if call.caller is None else ".".join(call.caller),
        "from_node": call.from_node,
    }


def _pool(node: str, name: str, view: PoolView) -> dict[str, Any]:
    nodes: dict[str, int] = {}
    for member in view.members:
        nodes[member.node] = nodes.get(member.node, 0) + 1
    return {
        "name": name,
        "node": node,
        "what": view.what,
        "size": view.size.text,
        "members": len(view.members),
        "draining": len(view.draining),
        "nodes": nodes,
        "problem": view.problem,
    }


def _problems(texts: list[str] | tuple[str, ...]) -> Rows:
    return {text: {"text": text} for text in texts[:MOST_ROWS]}


def _silent(silent: dict[str, str]) -> Rows:
    return _problems([f"{node} does not answer: {why}" for node, why in sorted(silent.items())])


def _line(error: Exception) -> str:
    return _line_of(str(error)) or type(error).__name__


def _line_of(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]


def death_rows(
    supervised: Iterable[tuple[DeathReport, str]], ends: Iterable[Mapping[str, Any]]
) -> tuple[Rows, int]:
    """Return the latest deaths, each once, and how many are left out. `supervised`: what
    supervisors remember of their children, each with the supervisor's name. `ends`: what nodes
    remember of all actors, and what ended nodes have left in the store; see
    `runtime.logs.service.ActorEnds`.
    """
    rows: Rows = {}
    for end in ends:
        # Any member may write to the store: only the names and texts were checked.
        epoch = end["epoch"] if isinstance(end.get("epoch"), int) else None
        rows[_key(end["name"], epoch, end["time"])] = {
            "at": end["time"],
            "name": end["name"],
            "node": end["node"],
            "epoch": epoch,
            "lived": None,
            "kind": end["kind"],
            "text": _cut(end["reason"], MOST_TEXT),
            "traceback": str(end.get("traceback") or "")[-MOST_TRACEBACK:],
            "supervisor": "",
        }
    # They know more of it: how long it had lived, and whose child it was.
    for death, supervisor in supervised:
        rows[_key(death.name, death.epoch, death.at)] = {
            "at": death.at,
            "name": death.name,
            "node": death.node,
            "epoch": death.epoch,
            "lived": death.at - death.started if death.started is not None else None,
            "kind": death.reason.kind,
            "text": _cut(death.reason.text, MOST_TEXT),
            "traceback": death.reason.traceback[-MOST_TRACEBACK:],
            "supervisor": supervisor,
        }
    latest = sorted(rows.items(), key=lambda pair: -pair[1]["at"])[:MOST_DEATHS]
    return dict(latest), len(rows) - len(latest)


def _key(name: str, epoch: int | None, at: float) -> str:
    """A start that failed has no epoch, but its time."""
    return f"{name}\n{epoch or repr(at)}"


def _cut(text: str, most: int) -> str:
    """Return the text, or its beginning."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
