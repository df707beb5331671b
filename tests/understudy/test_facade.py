"""`import understudy`: the names of both packages, and files of users that hide one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import actors
import runtime
import runtime.blocking
import understudy
from tests.house import ROOT


def test_the_names_of_both_packages_are_the_same_objects_here() -> None:
    for package in (actors, runtime):
        for name in package.__all__:
            assert getattr(understudy, name) is getattr(package, name)
            assert name in understudy.__all__
            assert name in dir(understudy)
    doors = {*understudy.__all__} - {*actors.__all__, *runtime.__all__}
    assert doors == understudy.DOORS
    assert understudy.blocking is runtime.blocking


@pytest.mark.parametrize("name", ["aio", "blocking", "errors", "simulation", "testing"])
@pytest.mark.parametrize(
    "first",
    [
        "from understudy import {0}",
        pytest.param("import runtime.{0}", marks=pytest.mark.long),
        "pass",
    ],
)
def test_a_module_is_one_under_both_names(name: str, first: str, tmp_path: Path) -> None:
    theirs = "actors" if name == "errors" else "runtime"
    program = (
        f"{first.format(name) if name != 'errors' else 'import actors.errors'}\n"
        f"import sys, understudy.{name} as ours\n"
        f"from understudy.{name} import *\n"
        f"import understudy, {theirs}.{name} as theirs\n"
        f"assert ours is theirs is understudy.{name}, ours\n"
        f"assert theirs.__name__ == '{theirs}.{name}'\n"
    )
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Aktor'") as caught:
        understudy.Aktor  # type: ignore[attr-defined] # noqa: B018
    # From these two Python makes its "Did you mean".
    assert (caught.value.name, caught.value.obj) == ("Aktor", understudy)


def run(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a directory as users do, with the packages as they are installed."""
    script = directory / "program.py"
    script.write_text(program)
    return subprocess.run(
        [sys.executable, script],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["actors", "runtime"])
@pytest.mark.parametrize("kind", ["file", "package", "loaded"])
def test_a_file_that_hides_a_package_is_named(name: str, kind: str, tmp_path: Path) -> None:
    if kind == "package":
        (tmp_path / name).mkdir()
        hiding = tmp_path / name
        (hiding / "__init__.py").write_text("")
    else:
        hiding = tmp_path / f"{name}.py"
        hiding.write_text("")
    before = f"import {name}; " if kind == "loaded" else ""
    done = run(tmp_path, f"{before}import understudy")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {hiding} hides the package '{name}' of Understudy, because Python looks "
        f"there first. Rename it, for example to my_{hiding.name}, and adapt its imports."
    )


def test_a_folder_of_data_hides_nothing(tmp_path: Path) -> None:
    """Python takes a folder without `__init__.py` only if there is no package of this name."""
    (tmp_path / "actors").mkdir()
    (tmp_path / "runtime").mkdir()
    done = run(tmp_path, "import understudy; print(understudy.open_node.__module__)")
    assert (done.returncode, done.stdout) == (0, "runtime.node.opening\n"), done.stderr


def test_importing_it_loads_nothing_of_the_packages_before_a_name_is_used(tmp_path: Path) -> None:
    program = (
        "import sys, importlib.util, pathlib, typing\n"
        "before = {*sys.modules}\n"
        "import understudy\n"
        "print(*sorted({*sys.modules} - before))"
    )
    done = run(tmp_path, program)
    assert done.stdout == "understudy understudy.name_conflicts\n", done.stderr


def test_the_package_is_the_command_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "understudy", "--version"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert runtime.__version__ in done.stdout
