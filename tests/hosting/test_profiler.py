"""Samples of stacks: bounded, by thread and actor, in the format of speedscope."""

from __future__ import annotations

import json
import sys
import threading
import zlib
from typing import Any

from runtime.hosting.profiler import (
    MOST_DEPTH,
    MOST_STACKS,
    Profile,
    packed_profile,
)
from runtime.hosting.stacks import stacks_of_threads


def check_speedscope(file: dict[str, Any]) -> None:
    """What https://www.speedscope.app/file-format-schema.json asks of a file with sampled profiles,
    and what its importer needs.
    """
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = file["shared"]["frames"]
    for frame in frames:
        assert isinstance(frame["name"], str)
        assert set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame.get("line", 0), int)
    for thread in file["profiles"]:
        assert set(thread) == {
            *("type", "name", "unit", "startValue", "endValue", "samples", "weights"),
        }
        assert thread["type"] == "sampled"
        assert thread["unit"] in ("none", "nanoseconds", "microseconds", "milliseconds", "seconds")
        assert len(thread["samples"]) == len(thread["weights"])
        assert all(0 <= frame < len(frames) for stack in thread["samples"] for frame in stack)
        assert all(weight >= 0 for weight in thread["weights"])
        assert abs(thread["endValue"] - sum(thread["weights"])) < 1e-6
    if file["profiles"]:
        assert 0 <= file["activeProfileIndex"] < len(file["profiles"])


def test_a_thread_that_computes_is_found_with_its_function() -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute, name="computing")
    thread.start()
    told: dict[str, Any] = {}
    stop = threading.Event()

    def profile() -> None:
        told.update(json.loads(zlib.decompress(packed_profile(60.0, 250, "", stop))))

    sampling = threading.Thread(target=profile)
    sampling.start()
    # It ends when it is told to, long before its time.
    stop.wait(0.5)
    stop.set()
    sampling.join()
    over.set()
    thread.join()
    file = told["file"]
    check_speedscope(file)
    computing = next(one for one in file["profiles"] if one["name"] == "computing")
    names = {file["shared"]["frames"][stack[-1]]["name"] for stack in computing["samples"]}
    assert any("compute" in name for name in names), names
    assert told["facts"]["samples"] > 0


def nested(depth: int) -> Any:
    return sys._getframe() if depth == 0 else nested(depth - 1)


def test_stacks_are_bounded_in_depth_and_number() -> None:
    profile = Profile()
    profile.add({1: nested(MOST_DEPTH * 2)}, {1: "deep"}, 0, 0.1)
    for number in range(MOST_STACKS + 10):
        namespace: dict[str, Any] = {"sys": sys}
        exec(f"def function_{number}():\n    return sys._getframe()", namespace)
        frame = namespace[f"function_{number}"]()
        profile.add({1: frame}, {1: "x" * 10_000}, 0, 0.1)
    file = profile.speedscope("test")
    check_speedscope(file)
    (thread,) = file["profiles"]
    assert len(thread["samples"][0]) == MOST_DEPTH
    assert len({tuple(stack) for stack in thread["samples"]}) <= MOST_STACKS
    last = file["shared"]["frames"][thread["samples"][-1][-1]]["name"]
    assert last == "(left out: too many different stacks)"


def test_what_is_seen_again_and_again_is_one_sample() -> None:
    profile = Profile()
    frame = sys._getframe()
    for _ in range(1000):
        profile.add({1: frame, 2: frame}, {1: "one"}, 2, 0.01)
    file = profile.speedscope("test")
    check_speedscope(file)
    (thread,) = file["profiles"]
    assert len(thread["samples"]) == 1
    assert abs(thread["endValue"] - 10.0) < 1e-6


def test_only_what_runs_for_the_actor_counts_if_one_is_named() -> None:
    profile = Profile("an actor")
    profile.add({1: sys._getframe()}, {1: "one"}, 0, 0.1)
    file = profile.speedscope("test")
    check_speedscope(file)
    assert file["profiles"] == []


def test_a_thread_of_the_runtime_that_waits_for_work_is_idle_and_a_method_that_waits_is_shown() -> (
    None
):
    over = threading.Event()

    def method() -> None:
        over.wait()

    for target, is_idle in ((over.wait, True), (method, False)):
        over.clear()
        thread = threading.Thread(target=target)
        thread.start()
        assert thread.ident is not None
        # Until it waits.
        while (frame := sys._current_frames()[thread.ident]).f_code.co_name != "wait" or (
            frame.f_back is None or frame.f_back.f_code.co_name != "wait"
        ):
            pass
        profile = Profile()
        profile.add({thread.ident: frame}, {}, 0, 1.0)
        over.set()
        thread.join()
        (told,) = profile.facts()["threads"]
        assert (told["busy"], told["idle"]) == ((0, 1.0) if is_idle else (1.0, 0.0))


class HarmfulSelf:
    """Looks like whatever raises when it is asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit


def test_variables_of_the_users_do_no_harm_to_a_profile_or_the_stacks_of_threads() -> None:
    frame = (lambda self: sys._getframe())(HarmfulSelf())
    profile = Profile("an actor")
    profile.add({1: frame}, {1: "one"}, 0, 0.1)
    assert profile.speedscope("test")["profiles"] == []
    (thread,), left_out = stacks_of_threads(lambda: {1: frame})
    assert (thread["actor"], left_out) == ("", 0)
