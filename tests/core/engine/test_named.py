"""All names of a config that lead nowhere, in one report: each with where it was set, its key, and what is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enginebay import LLM
from enginebay.cli import main
from enginebay.config import EngineConfig
from enginebay.errors import ConfigError, EnginebayError, ModelError, OptionsRejected, PluginNotFound
from support.fake_engines import Installed

NAMES = """
[model]
path = "nowhere/model"
[executor]
use = "mpp"
[runner]
use = "nope"
[extensions.tracy]
[worker]
extensions = ["marx"]
[status]
sinks = ["sqlite", "htp"]
[status.sqlite]
histry = 5
"""


def lines(error: BaseException | str) -> list[str]:
    return [line.strip() for line in str(error).splitlines()]


def expected(file: Path, folder: Path) -> list[str]:
    """How each begins."""
    return [
        f"{file}: [executor] use: No executor named 'mpp' is installed. Did you mean 'mp'? Installed: ",
        "ENGINEBAY__SCHEDULER__USE: [scheduler] use: No scheduler named 'fifo' is installed. Did you mean 'fcfs'? ",
        "--set: [runner] use: No runner named 'v9' is installed.",
        f"{file}: [extensions] tracy: No extension named 'tracy' is installed.",
        f"{file}: [worker] extensions: No worker extension named 'marx' is installed.",
        f"{file}: status sink 'sqlite' rejects [status.sqlite]: histry: unknown option. Did you mean 'history'?",
        f"{file}: [status] sinks: No status sink named 'htp' is installed. Did you mean 'http'? Installed: ",
        f"{file}: [model] path: there is no model folder or GGUF file {folder / 'nowhere/model'}",
    ]


def check(said: list[str], begins: list[str]) -> None:
    assert said[0] == f"the config has {len(begins)} faults:"
    for line, begin in zip(said[1:], begins, strict=True):
        assert line.startswith(begin)


@pytest.fixture
def file(fake: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY__SCHEDULER__USE", "fifo")
    path = tmp_path / "engine.toml"
    path.write_text(NAMES)
    return path


def test_all_names_are_told_at_once(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # P4
    with pytest.raises(ConfigError) as caught:
        LLM(file, sets=["runner.use=v9"])
    check(lines(caught.value), expected(file, tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["check", "--config", str(file), "--set", "runner.use=v9"])
    assert ended.value.code == 2
    check(lines(capsys.readouterr().err.removeprefix("enginebay: ")), expected(file, tmp_path))


def _by_llm(file: Path, *sets: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        LLM(file, sets=sets)
    return lines(caught.value)


@pytest.fixture(params=["check", "LLM"])
def refusal(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def of_check(file: Path, *sets: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--config", str(file), *(word for one in sets for word in ("--set", one))])
        assert ended.value.code == 2
        return lines(capsys.readouterr().err.removeprefix("enginebay: "))

    return of_check if request.param == "check" else _by_llm


def test_they_are_told_beside_values_that_are_none(
    file: Path, tmp_path: Path, refusal: Callable[..., list[str]]
) -> None:  # P4
    sets = ["runner.use=v9", "model.seed=-1", "cache.num_blocks=1", "cache.memory_bytes=1", "cache.block_size=0", "x"]
    form = [
        "--set x: there is no value",
        "--set: [model] seed: must be at least 0, and is -1",
        "--set: [cache] block_size: must be at least 1 or must be 'auto', and is 0",
        "--set: [cache]: memory_bytes and num_blocks say the same thing twice",
    ]
    check(refusal(file, *sets), [*form, *expected(file, tmp_path)])


def test_what_is_no_value_is_not_looked_for(file: Path, refusal: Callable[..., list[str]]) -> None:
    """The defaults that stand for it were not asked for."""
    file.write_text("scheduler = 5\n[model]\npath = 5\n[status]\nsinks = [5]\n[runner]\nuse = 'v9'\n")
    begins = [
        f"{file}: [model] path: must be a path",
        f"{file}: [scheduler]: must be a table",
        f"{file}: [status] sinks.0: must be text",
        f"{file}: [runner] use: No runner named 'v9'",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ENGINEBAY__SCHEDULER__USE")
        check(refusal(file), begins)


@pytest.mark.parametrize(
    ("key", "value", "kind", "text"),
    [
        ("executor.use", "mpp", PluginNotFound, "--set: [executor] use: No executor named 'mpp' is installed."),
        ("executor.options.x", "1", OptionsRejected, "--set: executor 'uni' rejects [executor.options]: x: unknown"),
        ("model.path", "/nowhere/x", ModelError, "--set: [model] path: there is no model folder or GGUF file /nowhere"),
        ("model.path", "/", ModelError, "--set: [model] path: / has no config.json"),
    ],
)
def test_one_fault_is_an_error_of_its_own_class(
    fake: Installed, key: str, value: str, kind: type[EnginebayError], text: str
) -> None:  # P3, P4
    with pytest.raises(ConfigError) as caught:
        LLM(fake.config(), sets=[f"{key}={value}"])
    assert type(caught.value) is kind
    assert str(caught.value).startswith(text)


def test_what_was_set_in_code_has_its_key(fake: Installed) -> None:
    config = EngineConfig.model_validate({**fake.config(), "executor": {"use": "mpp"}})
    with pytest.raises(PluginNotFound, match=r"^\[executor\] use: No executor named 'mpp' is installed\."):
        LLM(config)


def test_no_file_is_converted_for_a_config_that_is_refused(
    fake: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def converted(path: Path, *, progress: bool) -> Path:
        raise AssertionError("it takes a while, and for nothing")

    monkeypatch.setattr("enginebay.models._resolve.converted", converted)
    model = tmp_path / "tiny.gguf"
    model.write_bytes(b"GGUF")
    with pytest.raises(PluginNotFound):
        LLM(fake.config(), sets=[f"model.path={model}", "executor.use=mpp"])
    with pytest.raises(ConfigError, match="seed: must be at least 0"):
        LLM(fake.config(), sets=[f"model.path={model}", "model.seed=-1"])
