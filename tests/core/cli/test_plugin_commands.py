"""``plugins``, ``describe``, ``check`` and ``config schema``, as people see them."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from enginebay.cli import group, main
from enginebay.messages import ModelInfo
from support.fake_dist import FakeSite

MODEL = ModelInfo(
    path="/models/tiny",
    name="tiny",
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=100,
    max_model_len=8192,
    dtype="bfloat16",
)
SCHEDULER = """
from typing import Annotated, Literal
from pydantic import Field

class Inner(Options):
    depth: int = 1

class Opts(Options):
    window: Annotated[int, Field(ge=1, description="How many requests to look at.")] = 64
    mode: Annotated[Literal["fair", "strict"], Field(description="How ties are broken.")] = "fair"
    tags: tuple[str, ...] = ()
    size: Annotated[int, Field(gt=0)] | None = None
    inner: Inner = Inner()
    name: Annotated[str, Field(description="Has no default.")]

@hookimpl
def enginebay_register_schedulers():
    return [SchedulerPlugin(
        name="acme", options=Opts, factory=make, summary="Oldest first, in windows.",
        capabilities=SchedulerCapabilities(deterministic_order=True), requires_modules={"acme_core": "acme[core]"},
    )]
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(group, arguments)


@pytest.fixture
def alone(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    """Nothing is installed but what a test installs."""
    real = metadata.distributions
    monkeypatch.setattr(
        "enginebay.plugins._find.metadata",
        type(
            "Site",
            (),
            {
                "distributions": staticmethod(lambda: real(path=[str(site.folder)])),
                "distribution": staticmethod(metadata.distribution),
                "PackageNotFoundError": metadata.PackageNotFoundError,
            },
        ),
    )
    return site


def test_plugins_table(alone: FakeSite) -> None:
    alone.executor("uni", version="0.1.0")
    alone.executor("mp", package="mp-executor", version="2.0")
    alone.plugin("schedulers", "broken", "raise RuntimeError('imported')")
    result = run("plugins")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "executors\n"
        "  mp   mp-executor 2.0  mp_executor_plugin\n"
        "  uni  uni-pkg 0.1.0    uni_pkg_plugin\n"
        "\n"
        "runners\n"
        "  none\n"
        "\n"
        "schedulers\n"
        "  broken  broken-pkg 1.0  broken_pkg_plugin\n"
    )
    assert json.loads(run("plugins", "--json").stdout)[0] == {
        "kind": "executor",
        "name": "mp",
        "package": "mp-executor",
        "version": "2.0",
        "module": "mp_executor_plugin",
    }


def test_plugins_warns_of_a_clash(alone: FakeSite) -> None:  # P1
    alone.executor("mp", package="first")
    alone.executor("mp", package="second", version="3.0")
    result = run("plugins")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: executor 'mp' is offered by first 1.0 and second 3.0; "
        "asking for it is an error until only one of them is installed\n"
    )


def test_describe(alone: FakeSite) -> None:
    alone.plugin("schedulers", "acme", SCHEDULER, version="1.2")
    result = run("describe", "scheduler", "acme")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "scheduler acme\n"
        "  package     acme-pkg 1.2\n"
        "  module      acme_pkg_plugin\n"
        "  plugin API  1.0\n"
        "  summary     Oldest first, in windows.\n"
        "  needs       acme_core (pip install 'acme[core]')\n"
        "\n"
        "capabilities\n"
        "  deterministic_order  yes\n"
        "  overlap_safe         no\n"
        "\n"
        "options, under [scheduler.options]\n"
        "  window  integer >= 1 = 64           How many requests to look at.\n"
        "  mode    'fair' | 'strict' = \"fair\"  How ties are broken.\n"
        "  tags    list of string = []\n"
        "  size    integer > 0 = unset\n"
        '  inner   table = {"depth": 1}\n'
        "  name    string, required            Has no default.\n"
    )
    described = json.loads(run("describe", "scheduler", "acme", "--json").stdout)
    assert described["options"][0] == {
        "name": "window",
        "type": "integer >= 1",
        "required": False,
        "default": 64,
        "description": "How many requests to look at.",
    }


TIERS = """
class Mine(Policy):
    def key(self, request):
        return (1,)

def policy(context):
    return Mine(context)

def whole(context):
    import enginebay.scheduling
    return type("Whole", (Scheduler,), {name: None for name in Scheduler.__abstractmethods__})(context)

def leaves(context):
    raise SystemExit(3)

@hookimpl
def enginebay_register_schedulers():
    return [SchedulerPlugin(name="acme", factory=FACTORY, capabilities=SchedulerCapabilities(overlap_safe=SAFE))]
"""


@pytest.mark.parametrize(
    ("factory", "safe", "said", "in_json"),
    [
        ("Mine", False, "by the core's mechanics", True),
        ("policy", False, "by the core's mechanics", True),
        ("whole", False, "no", False),
        ("whole", True, "yes", True),
        ("leaves", False, "no", False),
    ],
)
def test_describe_says_whether_steps_overlap(
    alone: FakeSite, factory: str, safe: bool, said: str, in_json: bool
) -> None:
    alone.plugin("schedulers", "acme", TIERS.replace("FACTORY", factory).replace("SAFE", str(safe)))
    assert f"  overlap_safe         {said}\n" in run("describe", "scheduler", "acme").stdout
    told = json.loads(run("describe", "scheduler", "acme", "--json").stdout)
    assert told["capabilities"]["overlap_safe"] is in_json


def test_describe_a_runner_with_constraints(alone: FakeSite) -> None:
    alone.runner("acme", "constraints=BatchConstraints(block_sizes=(64, 128)), features=frozenset({'top_k', 'seed'})")
    out = run("describe", "runner", "acme").stdout
    for line in ("constraints.block_sizes", "64, 128"), ("features", "seed, top_k"), ("preference", "0"):
        assert any(row.split(maxsplit=1) == list(line) for row in out.splitlines()), out
    assert out.endswith("options, under [runner.options]\n  none\n")


def test_describe_errors_have_exit_code_2(alone: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:  # P3
    alone.scheduler("fcfs")
    with pytest.raises(SystemExit) as caught:
        main(["describe", "executor", "fcfs"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "enginebay: No executor named 'fcfs' is installed. 'fcfs' is a scheduler. Installed: none; "
        "a package offers one in the entry-point group enginebay.executors\n"
    )


@pytest.fixture
def parts(alone: FakeSite, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    """Three parts and a model."""
    alone.executor("uni")
    alone.runner("v1")
    alone.scheduler("fcfs")
    alone.status_sink("sqlite")
    monkeypatch.setattr("enginebay.models.resolve_model", lambda path, progress: path)
    monkeypatch.setattr("enginebay.models.read_model_info", lambda folder, name, needs_tokenizer: MODEL)
    return alone


def test_check_prints_what_is_in_force_and_why(parts: FakeSite, tmp_path: Path) -> None:  # P8
    config = tmp_path / "engine.toml"
    config.write_text("[scheduler]\nmax_num_seqs = 8\n")
    result = run("check", "--config", str(config), "--set", "cache.block_size=32")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    rows = [line.split(maxsplit=2) for line in lines[1 : lines.index("")]]
    assert lines[0] == "in force"
    assert ["max_num_seqs", "8", str(config)] in rows
    assert ["block_size", "32", "--set"] in rows
    assert ["overlap", "off", "executor 'uni' takes one step at a time"] in rows
    assert lines[lines.index("") + 1 :] == [
        "loaded from",
        f"  executor uni        uni-pkg 1.0     {parts.folder / 'uni_pkg_plugin.py'}",
        f"  runner v1           v1-pkg 1.0      {parts.folder / 'v1_pkg_plugin.py'}",
        f"  scheduler fcfs      fcfs-pkg 1.0    {parts.folder / 'fcfs_pkg_plugin.py'}",
        f"  status sink sqlite  sqlite-pkg 1.0  {parts.folder / 'sqlite_pkg_plugin.py'}",
    ]
    told = json.loads(run("check", "--json").stdout)
    assert {"name": "block_size", "value": "16", "why": "default"} in told["in_force"]
    assert [one["name"] for one in told["loaded"]] == ["uni", "v1", "fcfs", "sqlite"]


def test_check_shows_what_was_set_beside_the_parts(parts: FakeSite) -> None:
    sets = [
        "telemetry.file=t.jsonl",
        "deadlines.drain=7.5",
        "server.stall=3",
        "telemetry.endpoint=http://me:pass@h:1",
        "engine.batch_invariant=false",
    ]
    result = run("check", "--json", *(word for one in sets for word in ("--set", one)))
    told = {one["name"]: (one["value"], one["why"]) for one in json.loads(result.stdout)["in_force"]}
    assert told["deadlines drain"] == ("7.5", "--set")
    assert told["server stall"] == ("3.0", "--set")
    assert told["telemetry endpoint"] == ("http://…@h:1", "--set")
    assert told["telemetry file"] == (str(Path("t.jsonl").absolute()), "--set")
    assert not [name for name in told if name.startswith("engine ") or name == "deadlines stop"]


def test_check_shows_the_status_sinks(parts: FakeSite) -> None:
    def told(*sets: str) -> list[tuple[str, str, str]]:
        words = [word for one in sets for word in ("--set", one)]
        rows = json.loads(run("check", "--json", *words).stdout)["in_force"]
        return [(row["name"], row["value"], row["why"]) for row in rows if row["name"].startswith("status sink")]

    parts.status_sink("log", options="class Opts(Options):\n    colour: str = 'red'\n    size: int | None = None")
    assert told() == [("status sink sqlite", "loaded", "sqlite-pkg 1.0; default")]
    assert told('status.sinks=["log", "sqlite"]', "status.log.colour=blue") == [
        ("status sink log", "colour = blue, size = unset", "log-pkg 1.0; --set"),
        ("status sink sqlite", "loaded", "sqlite-pkg 1.0; --set"),
    ]
    assert told("status.sinks=[]") == [("status sinks", "none", "--set")]


def test_check_says_which_file_the_sqlite_sink_takes(
    parts: FakeSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts.status_sink("kept", options="from enginebay.status.sinks.sqlite import SqliteSinkOptions as Opts")
    monkeypatch.setenv("ENGINEBAY_STATE", str(tmp_path))

    def told(*sets: str) -> str:
        words = [word for one in ('status.sinks=["kept"]', *sets) for word in ("--set", one)]
        rows = json.loads(run("check", "--json", *words).stdout)["in_force"]
        [value] = [row["value"] for row in rows if row["name"] == "status sink kept"]
        return str(value)

    assert told() == f"path = {tmp_path / 'status.sqlite3'}, history = 10000"
    assert told("status.kept.path=/elsewhere/s.db").startswith("path = /elsewhere/s.db, ")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ['status.sinks=["sqlit"]'],
            (
                "--set: [status] sinks: No status sink named 'sqlit' is installed. Did you mean 'sqlite'? "
                "Installed: sqlite (sqlite-pkg 1.0)"
            ),
        ),
        (
            ["status.sqlite.file=x"],
            "--set: status sink 'sqlite' rejects [status.sqlite]: file: unknown option. Known options: none",
        ),
    ],
)
def test_check_refuses_a_status_sink(
    parts: FakeSite, sets: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:  # P4
    with pytest.raises(SystemExit) as caught:
        main(["check", *(word for one in sets for word in ("--set", one))])
    assert (caught.value.code, capsys.readouterr().err) == (2, f"enginebay: {said}\n")


def test_a_status_sink_is_listed_and_described(alone: FakeSite) -> None:
    alone.status_sink("log", options="class Opts(Options):\n    colour: str = 'red'")
    assert "status sinks\n  log  log-pkg 1.0  log_pkg_plugin\n" in run("plugins").stdout
    assert run("describe", "status sink", "log").stdout.endswith(
        'options, under [status.log]\n  colour  string = "red"\n'
    )


def test_check_refuses_with_exit_code_2(parts: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:  # P8
    with pytest.raises(SystemExit) as caught:
        main(["check", "--set", "scheduler.overlap=true"])
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        (
            "enginebay: [scheduler] overlap = true (--set): executor 'uni' takes one step at a time: leave it out, or "
            "set it to false.\n"
        ),
    )


def test_text_of_strangers_cannot_drive_the_terminal(alone: FakeSite) -> None:
    alone.add("evil", entry_points={"executors": {"\x1b[31mred": "evil"}})
    assert "\x1b" not in run("plugins").stdout


def test_schema_holds_every_plugins_options(alone: FakeSite) -> None:
    alone.executor("uni")
    alone.executor("mp")
    alone.runner("v1")
    alone.plugin("schedulers", "acme", SCHEDULER)
    alone.plugin("schedulers", "broken", "raise RuntimeError('x')")
    alone.plugin(
        "extensions",
        "watch",
        "@hookimpl\ndef enginebay_register_extensions(): return [ExtensionPlugin(name='watch', factory=make)]",
    )
    alone.status_sink("log", options="class Opts(Options):\n    colour: str = 'red'")
    result = run("config", "schema")
    assert result.exit_code == 0, result.output
    schema: dict[str, Any] = json.loads(result.stdout)
    assert schema["$defs"]["ExecutorConfig"]["properties"]["use"]["enum"] == ["mp", "uni"]
    assert schema["$defs"]["RunnerConfig"]["properties"]["use"]["enum"] == ["auto", "v1"]
    options = schema["$defs"]["scheduler.acme.options"]
    assert options["additionalProperties"] is False
    assert options["properties"]["window"]["description"] == "How many requests to look at."
    assert options["properties"]["inner"]["$ref"] == "#/$defs/scheduler.acme.Inner"
    assert "scheduler.acme.Inner" in schema["$defs"]
    assert schema["properties"]["extensions"]["properties"] == {"watch": {"$ref": "#/$defs/extension.watch.options"}}
    assert schema["$defs"]["StatusConfig"]["properties"]["log"] == {"$ref": "#/$defs/status sink.log.options"}
    assert schema["$defs"]["StatusConfig"]["properties"]["sinks"]["items"]["enum"] == ["log", "sqlite"]
    rules = {rule["if"]["properties"]["use"]["const"]: rule for rule in schema["$defs"]["ExecutorConfig"]["allOf"]}
    assert rules["mp"] == {
        "if": {"properties": {"use": {"const": "mp"}}, "required": ["use"]},
        "then": {"properties": {"options": {"$ref": "#/$defs/executor.mp.options"}}},
    }
    assert "required" not in rules["uni"]["if"]  # the default needs no use
    assert result.stderr == (
        "warning: left out: scheduler 'broken' of broken-pkg 1.0 is broken: importing broken_pkg_plugin raised "
        "RuntimeError: x. Repair or uninstall broken-pkg, or choose another scheduler.\n"
    )
    assert _dangling(schema) == set()


def _dangling(schema: dict[str, Any]) -> set[str]:
    """References that lead nowhere."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found.add(node["$ref"].removeprefix("#/$defs/"))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(schema)
    return found - set(schema["$defs"])


@pytest.mark.parametrize("command", ["plugins", "describe", "check", "config"])
def test_help_has_an_example(command: str) -> None:
    arguments = [command, "schema", "--help"] if command == "config" else [command, "--help"]
    result = run(*arguments)
    assert result.exit_code == 0
    assert f"enginebay {command}" in result.stdout
