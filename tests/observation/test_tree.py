"""Trees put together from facts that are late, missing or contradict each other, and how they are
drawn.
"""

from __future__ import annotations

import json
import math

import attrs
import pytest

from actors import ChildStatus, DeathReport, ExitReason, SupervisorStatus
from actors.errors import ActorNotFoundError
from runtime.observation.tree import (
    ASCII,
    Branch,
    KnownActor,
    Tree,
    assemble,
    draw_age,
    draw_deaths,
    draw_tree,
    lines_for,
)


def actor(name: str, supervisor: str = "", epoch: int = 1, **facts: object) -> KnownActor:
    base = KnownActor(
        name=name,
        node="w1",
        incarnation=1,
        epoch=epoch,
        class_path="app:Actor",
        supervisor=supervisor,
    )
    return attrs.evolve(base, **facts)  # type: ignore[arg-type]


def running(id: str, name: str, epoch: int = 1, **facts: object) -> ChildStatus:
    base = ChildStatus(id=id, name=name, state="running", node="w1", epoch=epoch, age=2.0)
    return attrs.evolve(base, **facts)  # type: ignore[arg-type]


def status(
    name: str, *children: ChildStatus, deaths: tuple[DeathReport, ...] = (), period: float = 5.0
) -> SupervisorStatus:
    return SupervisorStatus(
        name=name,
        strategy="one-for-one",
        intensity=3,
        period=period,
        recent_restarts=1,
        automatic_shutdown="never",
        max_children=None,
        children=children,
        deaths=deaths,
    )


def names(tree: Tree) -> list[tuple[str, str]]:
    return [(branch.id, branch.state) for branch in tree.walk()]


def test_children_stand_below_their_supervisors_in_the_order_of_their_start() -> None:
    actors = [
        actor("top/b", "top"),
        actor("top", waiting=2, age=60.0),
        actor("x", "top/s"),
        actor("top/s", "top"),
        actor("other"),
    ]
    statuses = {
        "top": status(
            "top", running("s", "top/s", kind="supervisor", restarts=4), running("b", "top/b")
        ),
        "top/s": status("top/s", running("x", "x")),
    }
    tree = assemble("c", actors, statuses, [])
    assert names(tree) == [("top", "running"), ("s", "running"), ("x", "running"), ("b", "running")]
    top, inner, *_ = tree.walk()
    assert (top.waiting, top.age, top.restarts, top.strategy) == (2, 60.0, None, "one-for-one")
    assert (inner.kind, inner.restarts) == ("supervisor", 4)
    assert tree.loose == ("other",)
    assert tree.answers


def test_roots_are_supervisors_that_are_nobodys_children_and_singletons_of_any_kind() -> None:
    actors = [
        actor("one", "@cluster"),
        actor("empty", supervises=True),
        actor("plain", supervises=False),
        actor("by-child"),
        actor("c", "by-child"),
    ]
    tree = assemble("c", actors, {"empty": status("empty")}, [])
    assert [(root.name, root.kind, root.singleton) for root in tree.roots] == [
        ("by-child", "supervisor", False),
        ("empty", "supervisor", False),
        ("one", "worker", True),
    ]


def test_below_a_supervisor_that_does_not_answer_stand_those_that_names_know_as_its_children() -> (
    None
):
    actors = [actor("top/b", "top", 9), actor("top/a", "top", 8), actor("top", epoch=7)]
    tree = assemble("c", actors, {"top": "nothing came"}, [])
    assert names(tree) == [("top", "does not answer"), ("a", "running"), ("b", "running")]
    assert tree.roots[0].problem == "nothing came"
    assert not tree.answers
    assert "does not answer" in draw_tree(tree)
    assert "nothing came" in draw_tree(tree)


def test_a_silent_supervisor_is_shown_as_silent_unless_known_to_have_ended() -> None:
    actors = [actor("top"), actor("top/s", "top"), actor("top/s/x", "top/s")]
    silent = {
        "top": status("top", running("s", "top/s", kind="supervisor")),
        "top/s": "nothing came",
    }
    assert names(assemble("c", actors, silent, [])) == [  # type: ignore[arg-type]
        ("top", "running"),
        ("s", "does not answer"),
        ("x", "running"),
    ]
    restarting = ChildStatus(
        id="s",
        name="top/s",
        kind="supervisor",
        state="restarting",
        last_exit=ExitReason("node died", "w1 is gone"),
    )
    tree = assemble(
        "c", [actor("top"), actor("top/s/x", "top/s")], {"top": status("top", restarting)}, []
    )
    assert names(tree) == [("top", "running"), ("s", "restarting"), ("x", "running")]
    assert "last: node died: w1 is gone" in draw_tree(tree)


def test_children_whose_supervisor_is_gone_are_not_lost_from_sight() -> None:
    tree = assemble("c", [actor("lost/a", "lost")], {}, [])
    assert names(tree) == [("lost", "gone"), ("a", "running")]


def test_a_supervisor_that_is_starting_is_said_to_be_and_shows_what_it_has_started() -> None:
    tree = assemble(
        "c", [actor("top", started=False, supervises=True), actor("top/a", "top", 2)], {}, []
    )
    assert names(tree) == [("top", "starting"), ("a", "running")]


def test_children_that_wait_for_names_of_others_or_of_their_own_ancestors_make_no_circles() -> None:
    waiting = ChildStatus(id="me", name="top", state="restarting")
    foreign = ChildStatus(id="f", name="other", state="restarting")
    actors = [actor("top"), actor("other"), actor("other/x", "other")]
    statuses = {
        "top": status("top", waiting, foreign),
        "other": status("other", running("x", "other/x")),
    }
    assert names(assemble("c", actors, statuses, [])) == [
        ("other", "running"), ("x", "running"), ("top", "running"), ("me", "restarting"), ("f", "restarting")
    ]  # fmt: skip
    circle = [actor("a", "b"), actor("b", "a"), actor("root"), actor("c", "root")]
    assert ("c", "running") in names(assemble("c", circle, {}, []))


def test_the_mailbox_of_an_earlier_epoch_is_not_shown_as_the_childs() -> None:
    statuses = {"top": status("top", running("a", "top/a", epoch=5))}
    old = assemble("c", [actor("top"), actor("top/a", "top", 4, waiting=7)], statuses, [])
    new = assemble("c", [actor("top"), actor("top/a", "top", 5, waiting=7)], statuses, [])
    assert [tree.roots[0].children[0].waiting for tree in (old, new)] == [None, 7]


def test_one_supervisor_is_shown_alone_and_an_unknown_one_is_answered_with_near_names() -> None:
    actors = [
        actor("top"),
        actor("top/parsers", "top"),
        actor("top/parsers/x", "top/parsers"),
        actor("loner"),
    ]
    tree = assemble("c", actors, {}, [])
    assert names(tree.below("top/parsers")) == [("parsers", "running"), ("x", "running")]
    with pytest.raises(ActorNotFoundError, match=r"'top/parser'.*did you mean 'top/parsers'"):
        tree.below("top/parser")
    with pytest.raises(ActorNotFoundError, match="neither a supervisor nor a child"):
        tree.below("loner")
    with pytest.raises(ActorNotFoundError, match="its trees are: top"):
        tree.below("zzzzzz")
    with pytest.raises(ActorNotFoundError, match="it has none"):
        assemble("c", [], {}, []).below("zzzzzz")


def test_the_facts_are_json_also_with_an_endless_period() -> None:
    death = DeathReport(
        id="a",
        name="top/a",
        node="w1",
        epoch=3,
        reason=ExitReason("raised", "boom", "Traceback: boom"),
        at=1.5,
    )
    tree = assemble(
        "c",
        [actor("top")],
        {"top": status("top", running("a", "top/a"), deaths=(death,), period=math.inf)},
        ["trouble"],
    )
    facts = json.loads(json.dumps(tree.facts(), allow_nan=False))
    (root,) = facts["roots"]
    assert (facts["problems"], root["period"], root["children"][0]["id"]) == (
        ["trouble"],
        None,
        "a",
    )
    assert root["deaths"][0]["reason"] == {
        "kind": "raised",
        "text": "boom",
        "traceback": "Traceback: boom",
    }


def leaf(id: str, **facts: object) -> Branch:
    return attrs.evolve(Branch(id=id, name=f"top/{id}", state="running"), **facts)  # type: ignore[arg-type]


DRAWN = """\
name     state
top      running
├─ a     running
│  └─ x  running
└─ b     restarting"""


def test_branches_are_drawn_with_boxes_or_where_these_cannot_be_shown_in_ascii() -> None:
    inner = leaf("a", children=(leaf("x"),))
    tree = Tree(
        cluster="c",
        roots=(
            Branch(
                id="top",
                name="top",
                state="running",
                children=(inner, leaf("b", state="restarting")),
            ),
        ),
    )
    assert draw_tree(tree, columns=("state",)) == DRAWN
    assert draw_tree(tree, columns=("state",), lines=ASCII) == DRAWN.replace("├─", "|-").replace(
        "└─", "`-"
    ).replace("│", "|")
    assert [lines_for(encoding) is ASCII for encoding in ("utf-8", "ascii", None, "no such encoding", "cp437")] == [
        False, True, True, True, True
    ]  # fmt: skip


def test_colours_change_no_column_and_lines_end_where_the_terminal_does() -> None:
    failed = leaf("a", state="restarting", last_exit=ExitReason("raised", "x" * 300))
    tree = Tree(cluster="c", roots=(failed,), problems=("node w1 does not answer: " + "y" * 100,))
    plain = draw_tree(tree)
    assert (
        draw_tree(tree, paint=lambda state, text: f"<{state}>{text}</>")
        .replace("<restarting>", "")
        .replace("</>", "")
        == plain
    )
    assert all(len(line) < 240 for line in plain.splitlines())
    cut = draw_tree(tree, width=30).splitlines()
    assert [len(line) for line in cut] == [30, 30, 30]
    assert cut[1].endswith("…")
    for width in range(1, 40):
        assert all(len(line) <= width for line in draw_tree(tree, width=width).splitlines())


def test_names_and_reasons_from_anywhere_cannot_move_the_cursor() -> None:
    reason = ExitReason("raised", "\x1b[2Jgone\nsecond line", "line one\n\x1b[2Jline two")
    death = DeathReport(id="a", name="a\nb", node=None, epoch=None, reason=reason, at=0.0)
    tree = Tree(
        cluster="c",
        roots=(leaf("evil\x1b[H\n", state="restarting", last_exit=reason, deaths=(death,)),),
    )
    for text in (draw_tree(tree), draw_deaths(tree, lambda at: f"{at:g}")):
        assert "\x1b" not in text
    assert len(draw_tree(tree).splitlines()) == 2
    assert "second line" not in draw_tree(tree)
    assert draw_deaths(tree, lambda at: f"{at:g}").splitlines()[0].startswith("0  a\\nb: raised")


def test_an_unknown_column_is_refused_and_nothing_at_all_is_said_in_words() -> None:
    with pytest.raises(ValueError, match="no column 'colour'; the columns are: state"):
        draw_tree(Tree(cluster="c", roots=()), columns=("colour",))  # type: ignore[arg-type]
    assert (
        draw_tree(Tree(cluster="c", roots=(), problems=("w1 sleeps",)))
        == "no supervisors\nw1 sleeps"
    )
    assert draw_deaths(Tree(cluster="c", roots=()), str) == "no deaths are kept"


def test_ages_are_in_units_that_people_read() -> None:
    ages = [None, -1.0, 0.04, 9.94, 59.9, 60.0, 7_200.0, 200_000.0]
    assert [draw_age(age) for age in ages] == [
        "-",
        "0.0 s",
        "0.0 s",
        "9.9 s",
        "59 s",
        "1 min",
        "2 h",
        "2 d",
    ]
