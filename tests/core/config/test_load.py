"""Config layers: file, environment, ``--set``; origins, paths, and files that cannot be read."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config import EngineConfig, Resolved, _load, load
from enginebay.errors import ConfigError


def write(folder: Path, text: str, name: str = "engine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def fails(path: Path | None, *sets: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, sets=sets, environ=environ)
    return str(caught.value)


def test_nothing_given_is_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "[scheduler]\nmax_num_seqs = 3\n")
    monkeypatch.chdir(tmp_path)  # a file here that nobody named is not read
    assert load(None, environ={}) == Resolved(EngineConfig(), {})


def test_later_layers_win_and_say_so(tmp_path: Path) -> None:
    path = write(tmp_path, '[scheduler]\nuse = "fair"\nmax_num_seqs = 3\n[executor.options]\nslots = 1\nbind = true\n')
    resolved = load(
        path,
        sets=["executor.options.slots=7", "cache.dtype=float16"],
        environ={
            "ENGINEBAY__SCHEDULER__MAX_NUM_SEQS": "5",
            "ENGINEBAY__CACHE__DTYPE": "bfloat16",
            "ENGINEBAY_CACHE": "x",
        },
    )
    config = resolved.config
    assert (config.scheduler.use, config.scheduler.max_num_seqs, config.cache.dtype) == ("fair", 5, "float16")
    assert config.executor.options == {"slots": 7, "bind": True}
    assert resolved.origins == {
        "scheduler.use": str(path),
        "scheduler.max_num_seqs": "ENGINEBAY__SCHEDULER__MAX_NUM_SEQS",
        "executor.options.slots": "--set",
        "executor.options.bind": str(path),
        "cache.dtype": "--set",
    }
    assert resolved.origin("cache.dtype") == "--set"
    assert resolved.origin("cache.hash") == "default"
    assert resolved.source("executor.options") == f"--set and {path}"
    assert resolved.source("runner.options") == str(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ('"quoted"', "quoted"),
        ("bare", "bare"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        ("", ""),
        ("a = b", "a = b"),
        ("1\nother = 2", "1\nother = 2"),
        ("[[[", "[[["),
    ],
)
def test_values_are_toml_or_text(text: str, value: object) -> None:
    assert load(None, sets=[f"executor.options.x={text}"], environ={}).config.executor.options == {"x": value}


def test_text_that_looks_like_a_number_stays_text_where_text_is_wanted() -> None:
    resolved = load(
        None, sets=["scheduler.use=7", "model.served_model_name=1.0"], environ={"ENGINEBAY__MODEL__PATH": "2024"}
    )
    assert resolved.config.scheduler.use == "7"
    assert resolved.config.model.served_model_name == "1.0"
    assert resolved.config.model.path == Path("2024")


def test_a_whole_table_can_be_set_and_added_to() -> None:
    sets = ["executor.options={a = 1}", "executor.options.b=2", 'extensions."a.b".x=1', "extensions.empty={}"]
    resolved = load(None, sets=sets, environ={})
    assert resolved.config.executor.options == {"a": 1, "b": 2}
    assert resolved.config.extensions == {"a.b": {"x": 1}, "empty": {}}


def test_a_later_cache_size_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = write(tmp_path, "[cache]\nnum_blocks = 10\n")
    resolved = load(path, sets=["cache.memory_bytes=4096"], environ={})
    assert (resolved.config.cache.num_blocks, resolved.config.cache.memory_bytes) == (None, 4096)
    assert resolved.origins == {"cache.memory_bytes": "--set"}


def test_two_cache_sizes_in_one_layer_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[cache]\nnum_blocks = 10\nmemory_bytes = 5\n")
    twice = "[cache]: memory_bytes and num_blocks say the same thing twice: keep one of them"
    assert fails(path) == f"{path}: {twice}"
    assert fails(None, "cache.num_blocks=10", "cache.memory_bytes=5") == f"--set: {twice}"
    both = {"ENGINEBAY__CACHE__MEMORY_BYTES": "5", "ENGINEBAY__CACHE__NUM_BLOCKS": "10"}
    assert fails(None, **both) == f"ENGINEBAY__CACHE__MEMORY_BYTES and ENGINEBAY__CACHE__NUM_BLOCKS: {twice}"


def test_paths_of_the_file_are_relative_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "beside").mkdir()
    monkeypatch.chdir(tmp_path)
    path = write(Path("conf"), '[model]\npath = "../models/a"\ntokenizer = "tok"\n[telemetry]\nfile = "t.jsonl"\n')
    config = load(path, environ={}).config
    assert config.model.path == tmp_path / "conf" / ".." / "models" / "a"
    assert config.model.tokenizer == tmp_path / "conf" / "tok"
    assert config.telemetry.file == tmp_path / "conf" / "t.jsonl"
    sets = load(path, sets=["telemetry.file=t.jsonl", "model.path=models/a"], environ={}).config
    assert (sets.telemetry.file, sets.model.path) == (tmp_path / "t.jsonl", tmp_path / "models" / "a")


def test_a_bare_name_is_an_imported_model_unless_it_is_there(tmp_path: Path) -> None:
    path = write(tmp_path, '[model]\npath = "SmolLM2-135M-Instruct"\n')
    assert load(path, environ={}).config.model.path == Path("SmolLM2-135M-Instruct")
    (tmp_path / "SmolLM2-135M-Instruct").mkdir()
    assert load(path, environ={}).config.model.path == tmp_path / "SmolLM2-135M-Instruct"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    path = write(tmp_path, '[model]\npath = "~/models/a"\n')
    assert load(path, environ={}).config.model.path == tmp_path / "me" / "models" / "a"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "no.toml"
    assert fails(path) == (
        f"there is no config file {path}: name one that exists, or none to run with the defaults "
        "(a model is named by model.path)"
    )


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    assert fails(tmp_path) == f"config file {tmp_path} cannot be read: Is a directory"


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_bytes(b"\xef\xbb\xbf[scheduler]\nmax_num_seqs = 3\n")
    assert load(path, environ={}).config.scheduler.max_num_seqs == 3


def test_a_pipe_without_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load, "_PATIENCE", 1000)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert fails(path) == f"config file {path} is a pipe, and nobody has written to it within 1 s"


@pytest.mark.parametrize("pause", [0.0, 0.4], ids=["at once", "later than its patience"])
def test_a_pipe_with_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float) -> None:
    """As of ``--config <(...)``: it may take its time once it is there, and write piece by piece."""
    read, write_end = os.pipe()
    monkeypatch.setattr(_load, "_PATIENCE", 100)

    def write_slowly() -> None:
        for piece in (b"[scheduler]\n", b"max_num_seqs = 3\n"):
            time.sleep(pause)
            os.write(write_end, piece)
        os.close(write_end)

    writer = threading.Thread(target=write_slowly)
    writer.start()
    if not pause:
        writer.join()  # gone before its pipe is opened
    assert load(Path(f"/dev/fd/{read}"), environ={}).config.scheduler.max_num_seqs == 3
    writer.join()
    os.close(read)


def test_a_pipe_whose_writer_leaves_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.open("wb").close())
    writer.start()
    assert load(path, environ={}).origins == {}
    writer.join()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xef\xbb\xbfa = 1\nb = '\xff'\n", ", line 2: not UTF-8 text (byte 0xff)"),
        (b"[scheduler]\nuse = = 3\n", ", line 2, column 7: not TOML: Invalid value"),
        (b"[scheduler", ", line 1, at the end: not TOML: Expected ']' at the end of a table declaration"),
        (b"a = 1\na = 2\n", ", line 2, column 6: not TOML: Cannot overwrite a value"),
        (b"a = 1\nb = '\xff'\n", ", line 2: not UTF-8 text (byte 0xff)"),
        (b"a = " + b"[" * 100_000, ": tables or lists are nested too deeply"),
    ],
)
def test_files_that_are_no_toml(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "engine.toml"
    path.write_bytes(text)
    assert fails(path) == f"{path}{said}"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30))
def test_any_set_is_a_config_or_a_config_error(item: str) -> None:
    with suppress(ConfigError):
        assert load(None, sets=[item, f"scheduler.{item}", f"scheduler.options.x={item}"], environ={}).origins
    try:
        assert load(None, sets=[f"scheduler.options.x={item}"], environ={}).origins
    except ConfigError as error:  # all else is a text
        assert str(error) == "--set scheduler.options.x: a number is beyond 64 bits"  # noqa: PT017 - most raise nothing


def test_the_config_survives_json() -> None:
    config = load(None, sets=["model.path=/a", "device.ids=[1, 0]", "extensions.x.y=1"], environ={}).config
    assert EngineConfig.model_validate_json(config.model_dump_json()) == config


def test_numbers_that_are_none(tmp_path: Path) -> None:
    digits = "9" * 5000
    with pytest.raises(ConfigError, match="num_blocks"):
        load(None, sets=[f"cache.num_blocks={digits}"], environ={})
    file = tmp_path / "engine.toml"
    file.write_text(f"[cache]\nnum_blocks = {digits}\n")
    with pytest.raises(ConfigError, match=r"^.*engine\.toml: Exceeds the limit"):
        load(file, environ={})
    for key in ("cache.num_blocks", "model.seed", "scheduler.max_num_seqs", "scheduler.long_prefill_token_threshold"):
        with pytest.raises(ConfigError, match=key.rpartition(".")[2]):
            load(None, sets=[f"{key}=true"], environ={})


def test_status_sinks_have_tables_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path, '[status]\nsinks = ["one", "two"]\n[status.two]\nsize = 1\ndeep = {a = 1}\n')
    found = load(path, sets=["status.two.size=2"], environ={"ENGINEBAY__STATUS__ONE__COLOUR": "red"})
    assert found.config.status.sinks == ("one", "two")
    assert found.config.status.options == {"one": {"colour": "red"}, "two": {"size": 2, "deep": {"a": 1}}}
    assert found.origin("status.two.size") == "--set"
    assert EngineConfig.model_validate_json(found.config.model_dump_json()) == found.config  # as workers are told it


def test_without_a_status_sink_tables_may_stand(tmp_path: Path) -> None:
    path = write(tmp_path, "[status]\n[status.sqlite]\nhistory = 5\n")
    assert load(path, sets=["status.sinks=[]"], environ={}).config.status.sinks == ()
    assert load(None, environ={}).config.status.sinks == ("sqlite",)
