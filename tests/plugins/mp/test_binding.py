"""CPUs and threads for each rank: tables of pure functions, and what a worker really has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import CapabilityError, OptionsRejected
from enginebay.plugins import PluginHost
from enginebay_mp.binding import THREAD_VARIABLES, cpus_of, numa_nodes, shares, spread, thread_environment
from plugins.mp.conftest import Drive


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("3,0-1", (0, 1, 3)), (" 4 , 2-2", (2, 4)), ("1-2,2-3", (1, 2, 3))],
)
def test_sets_as_linux_writes_them(text: str, cpus: tuple[int, ...]) -> None:
    assert cpus_of(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1 2", "1;2", "99999999"])
def test_what_is_no_set(text: str) -> None:
    with pytest.raises(ValueError, match="is no set of CPUs, such as"):
        cpus_of(text)


def test_nodes_are_read_from_sys(tmp_path: Path) -> None:
    for name, cpus in {"node1": "4-7\n", "node0": "0-3\n", "node10": "8\n", "node2": "\n"}.items():
        folder = tmp_path / "sys/devices/system/node" / name
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    assert numa_nodes(tmp_path) == ((0, 1, 2, 3), (4, 5, 6, 7), (8,))
    assert numa_nodes(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("allowed", "nodes", "ranks", "expected"),
    [
        (range(8), [], 2, ((0, 1, 2, 3), (4, 5, 6, 7))),
        (range(8), [(0, 2, 4, 6), (1, 3, 5, 7)], 2, ((0, 2, 4, 6), (1, 3, 5, 7))),
        (range(5), [], 2, ((0, 1), (2, 3, 4))),
        ([1, 3], [], 3, ((1,), (3,), (1,))),
        ([2, 5], [(5,), (2,)], 2, ((5,), (2,))),
    ],
)
def test_shares_follow_the_nodes(
    allowed: range | list[int], nodes: list[tuple[int, ...]], ranks: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    assert spread(allowed, nodes, ranks) == expected


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(1, 20))
def test_every_cpu_is_given_once(allowed: set[int], ranks: int) -> None:
    given_out = spread(sorted(allowed), [], ranks)
    assert len(given_out) == ranks
    assert all(given_out)
    if ranks <= len(allowed):
        assert sorted(cpu for share in given_out for cpu in share) == sorted(allowed)
        sizes = [len(share) for share in given_out]
        assert max(sizes) - min(sizes) <= 1


def test_what_the_option_gives() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert shares("off", 3) == ((), (), ())
    assert sorted({cpu for share in shares("spread", 2) for cpu in share}) == mine
    assert shares((str(mine[0]), str(mine[0])), 2) == ((mine[0],), (mine[0],))
    with pytest.raises(CapabilityError, match=r"bind_cpus names 1 sets of CPUs, and there are 2 ranks: give one for"):
        shares(("0",), 2)
    with pytest.raises(CapabilityError, match=r"bind_cpus names CPU 99999, and this process may use "):
        shares(("99999",), 1)


def test_a_wrong_set_is_refused_with_the_config() -> None:
    with pytest.raises(OptionsRejected, match="is no set of CPUs"):
        PluginHost().load_executor("mp", {"bind_cpus": ["0-1", "x"]})
    options = PluginHost().load_executor("mp", {"bind_cpus": ["0-1", "2"]}).options
    assert options.bind_cpus == ("0-1", "2")


def test_threads_are_the_users_when_he_sets_one_variable() -> None:
    assert thread_environment({}, 3) == {
        "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3"
    }  # fmt: skip
    assert thread_environment({}, 0)["OMP_NUM_THREADS"] == "1"
    assert thread_environment({"MKL_NUM_THREADS": "7"}, 3) == {}
    assert thread_environment({"OMP_NUM_THREADS": ""}, 3) != {}


def test_each_worker_has_its_cpus_and_its_threads(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    driver = drive(2, bind_cpus="spread")
    driver.start()
    for worker, cpus in zip(driver.workers, spread(sorted(os.sched_getaffinity(0)), numa_nodes(), 2), strict=True):
        assert os.sched_getaffinity(worker.pid) == set(cpus)
        environ = Path(f"/proc/{worker.pid}/environ").read_text().split("\0")
        assert {f"{name}={len(cpus)}" for name in THREAD_VARIABLES} <= set(environ)
