"""The memory in which a node's processes read how long no other node can have its names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runtime.isolation.lease_page import LeasePage, LeaseView

READ = (
    "import sys; from runtime.isolation.lease_page import LeaseView; "
    "print(LeaseView(sys.argv[1]).left())"
)


def test_another_process_reads_the_seconds_that_are_left() -> None:
    page = LeasePage()
    page.write(1000.0)
    done = subprocess.run(
        [sys.executable, "-c", READ, page.place], capture_output=True, text=True, check=True
    )
    # The clocks of both agree; how long the process takes to start is not asserted closely.
    assert 0 < 1000.0 - float(done.stdout) < 500


def test_before_anything_is_written_no_time_is_left() -> None:
    assert LeaseView(LeasePage().place).left() < 0


def test_what_is_written_later_counts_and_may_be_earlier() -> None:
    page = LeasePage()
    view = LeaseView(page.place)
    page.write(1000.0)
    page.write(-1.0)
    assert view.left() < 0


def test_the_page_of_a_node_that_is_gone_cannot_be_read() -> None:
    place = LeasePage().place
    with pytest.raises(OSError, match=place):
        LeaseView(place)
