"""A plugin that ends the process, or would, wherever it is called from: each time an error with its name."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent
from typing import Any

import pytest

from enginebay.cli import describe
from enginebay.config import EngineConfig
from enginebay.errors import EnginebayError, PluginBroken
from enginebay.plugins import PluginHost, config_schema
from support.fake_dist import FakeSite
from support.leaving import in_a_thread

RAISES = [
    ("raise ValueError('gone')", "ValueError: gone"),
    ("import sys; sys.exit(3)", "SystemExit: 3"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("raise GeneratorExit('gone')", "GeneratorExit: gone"),
    ("import asyncio; raise asyncio.CancelledError('gone')", "CancelledError: gone"),
]
"""KeyboardInterrupt is raised beside the main thread, where Ctrl-C never comes."""

OPTIONS = """
from pydantic import field_serializer, model_validator

class Opts(Options):
    size: int = 1

    @{where}
    def leave(self{more}):
{body}

@hookimpl
def enginebay_register_schedulers():
    return [SchedulerPlugin(name="bad", options=Opts, factory=make)]
"""

EXTENSION = """
def leave():
{body}

class Extension:
    @hookimpl
    def enginebay_configure(self, config):
        leave()

    @hookimpl
    def enginebay_wrap_executor(self, executor, context):
        leave()

    @hookimpl
    def enginebay_engine_stopped(self):
        leave()

@hookimpl
def enginebay_register_extensions():
    return [
        ExtensionPlugin(name="bad", factory=lambda options: Extension()),
        ExtensionPlugin(name="unmade", factory=lambda options: leave()),
    ]
"""


def told(call: Callable[[], Any]) -> str:
    """The words of the ``PluginBroken`` that a call raises."""
    error = in_a_thread(call)
    assert isinstance(error, PluginBroken), repr(error)
    return str(error)


@pytest.mark.parametrize(("body", "said"), RAISES)
@pytest.mark.parametrize(
    ("where", "more"),
    [('model_validator(mode="after")', ""), ('field_serializer("size")', ", value")],
)
def test_options(site: FakeSite, body: str, said: str, where: str, more: str) -> None:
    if body.startswith("raise ValueError") and not more:
        body, said = "raise KeyError('gone')", "KeyError: 'gone'"  # a ValueError is how a model refuses
    site.plugin("schedulers", "bad", OPTIONS.format(where=where, more=more, body=indent(body, " " * 8)))
    words = told(lambda: site.host().load_scheduler("bad", {}))
    assert words.startswith("scheduler 'bad' of bad-pkg 1.0 is broken: its options model Opts raised ")
    assert said in words


@pytest.mark.parametrize(("body", "said"), RAISES)
def test_a_schema(site: FakeSite, body: str, said: str) -> None:
    model = "model_json_schema(cls, *a, **k)"
    source = OPTIONS.replace("leave(self{more})", model).format(where="classmethod", body=indent(body, " " * 8))
    site.plugin("schedulers", "bad", source)
    warnings: list[str] = []
    assert in_a_thread(lambda: warnings.extend(config_schema(site.host())[1])) is None
    assert warnings == [f"scheduler.bad: its options have no schema: {said}"]
    context = describe.command.make_context("describe", ["scheduler", "bad"])
    assert told(lambda: describe.command.invoke(context)) == (
        f"scheduler 'bad' of bad-pkg 1.0 is broken: its options have no schema: {said}"
    )


@pytest.mark.parametrize(("body", "said"), RAISES)
def test_hooks_and_the_making_of_an_extension(
    site: FakeSite, body: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = EXTENSION.format(body=indent(body, " " * 4))
    site.add(
        "bad-pkg",
        entry_points={"extensions": {"bad": "bad_pkg", "unmade": "bad_pkg"}},
        modules={"bad_pkg": "from enginebay.hookspecs import hookimpl\nfrom enginebay.interfaces import *\n" + source},
    )
    host: PluginHost = site.host()
    assert told(lambda: host.load_extensions({"unmade": {}})) == (
        f"extension 'unmade' of bad-pkg 1.0 is broken: making it raised {said}"
    )
    host.load_extensions({"bad": {}})
    assert told(lambda: host.hooks.configure(EngineConfig())).endswith(f"raised {said}")
    assert told(lambda: host.hooks.wrap_executor(None, None)).endswith(f"raised {said}")  # type: ignore[arg-type]  # it is not looked at
    assert in_a_thread(host.hooks.engine_stopped) is None  # an observer's fault is its own
    assert caplog.messages[-1].endswith(f"raised {said}")


def test_a_real_ctrl_c_passes(site: FakeSite) -> None:
    source = OPTIONS.format(where='model_validator(mode="after")', more="", body=" " * 8 + "raise KeyboardInterrupt")
    site.plugin("schedulers", "bad", source)
    with pytest.raises(KeyboardInterrupt):  # in the main thread, where signals arrive
        site.host().load_scheduler("bad", {})


def test_errors_of_ours_are_not_wrapped(site: FakeSite) -> None:
    site.plugin(
        "schedulers",
        "bad",
        OPTIONS.format(where='model_validator(mode="after")', more="", body=" " * 8 + "raise ValueError('no')"),
    )
    error = in_a_thread(lambda: site.host().load_scheduler("bad", {}))
    assert isinstance(error, EnginebayError)
    assert not isinstance(error, PluginBroken)
