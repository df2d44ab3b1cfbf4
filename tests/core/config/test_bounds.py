"""Configs that nothing could walk through are refused in a line each; many faults are told of in few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.config import load
from enginebay.errors import ConfigError


def _refusal(path: Path | None = None, **given: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, **{"environ": {}, **given})  # type: ignore[arg-type]  # sets and environ by name
    for line in str(caught.value).split("\n"):
        assert line.isprintable()
        assert len(line) < 1100
    return str(caught.value)


DEEP = "tables or lists are nested more than 32 deep"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a." * 5000 + "a = 1", DEEP),
        ("[" + "a." * 5000 + "a]", DEEP),
        ("[runner.options]\n" + "a." * 5000 + "a = 1", DEEP),
        ("[runner.options]\na = " + "[" * 100 + "]" * 100, DEEP),
        ("[model]\nseed = 0x" + "f" * 100_000, "a number is beyond 64 bits"),
        ("[deadlines]\nstep = 0x" + "f" * 100_000, "a number is beyond 64 bits"),
        ("[runner.options]\nx = [{a = 9223372036854775808}]", "a number is beyond 64 bits"),
        ("[runner.options]\nx = -9223372036854775808", "a number is beyond 64 bits"),
    ],
    ids=range(8),
)
def test_bombs(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(text)
    assert _refusal(path) == f"{path}: {error}"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    assert _refusal(path) == f"config file {path} has more than 1024 KiB"


def test_the_same_on_the_command_line_and_in_the_environment() -> None:
    key = "runner." + "a." * 40 + "a"
    assert _refusal(sets=[f"{key}=1"]) == f"--set {key}: the key has 42 parts; at most 32"
    assert _refusal(sets=["model.seed=" + "[" * 40 + "]" * 40]) == f"--set model.seed: {DEEP}"
    assert _refusal(sets=["model.path=a\udcff"]) == "--set model.path: a text is not UTF-8"
    assert _refusal(sets=["runner.options.\udcff=1"]) == "--set runner.options.?: a text is not UTF-8"
    name = "ENGINEBAY__MODEL__SEED"
    assert _refusal(environ={name: str(2**63)}) == f"{name}: a number is beyond 64 bits"


def test_the_same_in_code() -> None:
    for options in ({"x": "\udcff"}, {"\udcff": 1}, {"x": [{"\udcff": 1}]}):
        with pytest.raises(ConfigError, match=r"^the config given in code: a text is not UTF-8$"):
            load({"runner": {"options": options}}, environ={})


def test_many_faults_are_counted() -> None:
    lines = _refusal(environ={f"ENGINEBAY__MODEL__K{n}": "1" for n in range(3000)}).split("\n  ")
    assert lines[0] == "the config has 3000 faults:"
    assert len(lines) == 52
    assert lines[-1] == "and 2950 more"


def test_names_cannot_break_the_line(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('[model]\n"x\\n\\u001b[31m" = 1')
    assert _refusal(path).startswith(f"{path}: [model] x??[31m: unknown key. Known keys: path, ")
    assert _refusal(sets=['model."a\nb']).startswith('--set model."a?b: there is no value')


def test_a_path_that_cannot_be_looked_at() -> None:
    name = "a" * 1000
    assert str(load(None, sets=[f"model.path={name}"], environ={}).config.model.path) == name
