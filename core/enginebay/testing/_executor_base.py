"""What the parts of the executors' suite share: the names of what is tested, drivers, and worlds of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from enginebay.interfaces import Kind
from enginebay.testing._executor_driver import ExecutorDriver
from enginebay.testing._offer import offer
from enginebay.testing.fakes import FAKE_RUNNER, KIT_EXTENSION

MakeDriver = Callable[..., ExecutorDriver]
F = TypeVar("F", bound=Callable[..., None])
_SEVERAL = "_of_several_ranks"
_EACH = "_of_each_size"
_FAKES = "enginebay.testing.fakes"


def each_size(test: F) -> F:
    """Mark a test that is run for each of the sizes; the others are for the largest world alone."""
    setattr(test, _EACH, True)
    return test


def several(test: F) -> F:
    """Mark a test that says nothing of a world of one rank."""
    setattr(test, _SEVERAL, True)
    return test


class ExecutorBase:
    """The attributes that a suite of one executor sets, and the fixtures of its tests."""

    name: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    world_sizes: ClassVar[tuple[int, ...]] = (1, 2)
    patience: ClassVar[float] = 60.0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if max(cls.world_sizes) == 1:  # nothing to skip: such a suite does not have these tests
            for name in dir(cls):
                if hasattr(getattr(cls, name), _SEVERAL):
                    setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test in the worlds that it is for."""
        if "world_size" in metafunc.fixturenames:
            sizes = self.world_sizes if hasattr(metafunc.function, _EACH) else (max(self.world_sizes),)
            metafunc.parametrize("world_size", sizes, ids=[f"ranks{size}" for size in sizes], scope="class")

    @pytest.fixture(scope="class")
    @classmethod
    def offered(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """The fake runner and the fake extension as installed plugins."""
        folder = tmp_path_factory.mktemp("offered")
        with pytest.MonkeyPatch.context() as monkeypatch:
            offer(folder, monkeypatch, Kind.RUNNER, FAKE_RUNNER, _FAKES)
            offer(folder, monkeypatch, Kind.WORKER_EXTENSION, KIT_EXTENSION, _FAKES)
            yield

    @pytest.fixture(scope="class")
    @classmethod
    def shared(
        cls, offered: None, tmp_path_factory: pytest.TempPathFactory, world_size: int
    ) -> Iterator[ExecutorDriver]:
        """One driver for all tests that leave it as it was: a start takes long."""
        folder = tmp_path_factory.mktemp("shared")
        driver = cls._driver(cls.name, folder, world_size)
        try:
            driver.ready()
            yield driver
        finally:
            end(driver)

    @classmethod
    def _driver(cls, name: str, folder: Path, world_size: int) -> ExecutorDriver:
        return ExecutorDriver(
            name,
            folder,
            options=cls.options,
            patience=cls.patience,
            world_size=world_size,
            extensions=(KIT_EXTENSION,),
        )

    @pytest.fixture
    def running(self, shared: ExecutorDriver) -> Iterator[ExecutorDriver]:
        """The shared driver, whose workers are ready for steps, and are so again after the test."""
        shared.gate.unlink(missing_ok=True)
        yield shared
        shared.gate.touch()
        shared.run_step()
        assert shared.exits == []

    @pytest.fixture
    def make(self, offered: None, tmp_path: Path, world_size: int) -> Iterator[MakeDriver]:
        """Makes drivers; at the end it opens their gates and stops them, and no worker may be left."""
        made: list[ExecutorDriver] = []

        def make(name: str | None = None) -> ExecutorDriver:
            folder = tmp_path / f"driver{len(made)}"
            driver = self._driver(name or self.name, folder, world_size)
            made.append(driver)
            return driver

        yield make
        for driver in made:
            end(driver)

    @pytest.fixture
    def driver(self, make: MakeDriver) -> ExecutorDriver:
        """One driver, not started."""
        return make()


def end(driver: ExecutorDriver) -> None:
    """Let the workers go, and stop them; none may be left."""
    driver.gate.touch()
    if driver.executor is not None:
        driver.stop()
    driver.wait_until_gone()
    driver.run_folder.close()
