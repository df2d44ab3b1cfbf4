"""Loading by name: what is broken is named, with distribution, module and cause."""

from __future__ import annotations

import sys

import pytest

from enginebay.errors import OptionsRejected, PluginBroken, PluginTooNew
from enginebay.interfaces import Kind, NoOptions
from enginebay.messages import PluginIdentity
from support.fake_dist import HEAD, FakeSite

BROKEN = "executor 'bad' of bad-pkg 1.0 is broken: "


def test_load_by_name(site: FakeSite) -> None:
    site.plugin(
        "executors",
        "good",
        """
        class Opts(Options):
            slots: int = 4
            tags: frozenset[str] = frozenset()

        @hookimpl
        def enginebay_register_executors():
            return [
                ExecutorPlugin(name="other", factory=make),
                ExecutorPlugin(name="good", options=Opts, factory=make),
            ]
        """,
        version="1.2",
    )
    loaded = site.host().load_executor("good", {"slots": 8, "tags": ["b", "a"]})
    assert loaded.plugin.name == "good"
    assert loaded.options.model_dump() == {"slots": 8, "tags": {"a", "b"}}
    assert loaded.identity == PluginIdentity(
        kind="executor", name="good", package="good-pkg", version="1.2", options='{"slots":8,"tags":["a","b"]}'
    )
    assert (loaded.origin, loaded.name_and_version) == ("good-pkg 1.2", "executor 'good' 1.2")


def test_an_unnamed_broken_package_does_nothing(site: FakeSite) -> None:  # P2
    module = site.plugin("executors", "bad", "raise RuntimeError('imported')")
    site.executor("good")
    assert site.host().load_executor("good", {}).options == NoOptions()
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        (r"raise RuntimeError('boom\n  line2\x1b[31m')", "RuntimeError: boom line2?[31m"),
        ("import package_that_is_not_there", "ModuleNotFoundError: No module named 'package_that_is_not_there'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Panic(BaseException): pass\nraise Panic", "Panic"),
        ("this is no python", "SyntaxError: invalid syntax (bad_pkg_plugin.py, line 9)"),
    ],
)
def test_a_named_broken_package_stops(site: FakeSite, body: str, said: str) -> None:  # P2
    site.plugin("executors", "bad", body)
    with pytest.raises(PluginBroken) as caught:
        site.host().load_executor("bad", {})
    assert str(caught.value) == (
        f"{BROKEN}importing bad_pkg_plugin raised {said}. Repair or uninstall bad-pkg, or choose another executor."
    )
    assert caught.value.__cause__ is not None


def test_ctrl_c_is_not_the_plugins_doing(site: FakeSite) -> None:
    site.plugin("executors", "bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.host().load_executor("bad", {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "module bad_pkg_plugin has no enginebay_register_executors."),
        (
            "def enginebay_register_executors(): return []",
            "module bad_pkg_plugin has enginebay_register_executors without @hookimpl.",
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): return 'bad'",
            "enginebay_register_executors of bad_pkg_plugin returned a str, and must return a list of ExecutorPlugin.",
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): pass",
            "enginebay_register_executors of bad_pkg_plugin returned None, and must return a list of ExecutorPlugin.",
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): return [SchedulerPlugin(name='bad', factory=make)]",
            (
                "enginebay_register_executors of bad_pkg_plugin returned a list with SchedulerPlugin, "
                "and must return a list of ExecutorPlugin."
            ),
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): return [ExecutorPlugin(name='bda', factory=make)]",
            (
                "enginebay_register_executors of bad_pkg_plugin registers 'bda', "
                "and the entry point asks for exactly one 'bad'."
            ),
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): return []",
            (
                "enginebay_register_executors of bad_pkg_plugin registers nothing, "
                "and the entry point asks for exactly one 'bad'."
            ),
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): return [ExecutorPlugin(name='bad', factory=make)] * 2",
            (
                "enginebay_register_executors of bad_pkg_plugin registers 'bad', 'bad', "
                "and the entry point asks for exactly one 'bad'."
            ),
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): return 1 / 0",
            "enginebay_register_executors of bad_pkg_plugin raised ZeroDivisionError: division by zero.",
        ),
        (
            "@hookimpl\ndef enginebay_step_finishd(report): pass",
            (
                "bad_pkg_plugin (bad-pkg 1.0) implements enginebay_step_finishd, "
                "and there is no such hook in this version."
            ),
        ),
        (
            "@hookimpl\ndef enginebay_step_finished(raport): pass",
            (
                "Plugin 'bad_pkg_plugin (bad-pkg 1.0)' for hook 'enginebay_step_finished' hookimpl definition: "
                "enginebay_step_finished(raport) Argument(s) {'raport'} are declared in the hookimpl "
                "but can not be found in the hookspec"
            ),
        ),
        (
            "@hookimpl(wrapper=True)\ndef enginebay_step_finished(report): return (yield)",
            (
                "hook enginebay_step_finished of bad_pkg_plugin (bad-pkg 1.0) is a wrapper, "
                "and hooks of enginebay are not wrapped."
            ),
        ),
        (
            (
                "@hookimpl\ndef enginebay_register_executors(): "
                "return [ExecutorPlugin(name='bad', factory=make, requires_api='1.0')]"
            ),
            "its requires_api is '1.0', and must be (major, minor).",
        ),
        (
            "@hookimpl\ndef enginebay_register_executors(): return [ExecutorPlugin(name='bad', factory=3)]",
            "its factory cannot be called.",
        ),
        (
            (
                "class Loose(Options, extra='allow'): pass\n"
                "@hookimpl\ndef enginebay_register_executors(): "
                "return [ExecutorPlugin(name='bad', factory=make, options=Loose)]"
            ),
            "its options model Loose accepts keys that it does not know: keep extra='forbid'.",
        ),
    ],
)
def test_half_registered_plugins(site: FakeSite, body: str, said: str) -> None:
    site.plugin("executors", "bad", body)
    site.executor("good")
    host = site.host()
    with pytest.raises(PluginBroken) as caught:
        host.load_executor("bad", {})
    assert str(caught.value) == BROKEN + said
    assert host.load_executor("good", {}).plugin.name == "good"  # what is broken leaves nothing behind


def test_an_entry_point_names_a_module(site: FakeSite) -> None:
    site.add("bad-pkg", entry_points={"executors": {"bad": "bad_module:register"}})
    with pytest.raises(PluginBroken) as caught:
        site.host().load_executor("bad", {})
    assert str(caught.value) == (
        f"{BROKEN}its entry point is 'bad_module:register', and must name a module, "
        f"as in \"bad = 'my_package.plugin'\"."
    )


@pytest.mark.parametrize(
    ("needs", "offers", "way_out"),
    [
        ((1, 4), (1, 1), "upgrade enginebay, or install an older far-pkg"),
        ((2, 0), (1, 1), "upgrade enginebay, or install an older far-pkg"),
        ((1, 0), (2, 3), "install a newer far-pkg"),
    ],
)
def test_api_versions(site: FakeSite, needs: tuple[int, int], offers: tuple[int, int], way_out: str) -> None:  # P5
    register = "@hookimpl\ndef enginebay_register_schedulers(): return [SchedulerPlugin(name='far', factory=make"
    site.plugin("schedulers", "far", f"{register}, requires_api={needs})]")
    with pytest.raises(PluginTooNew) as caught:
        site.host(api=offers).load_scheduler("far", {})
    assert str(caught.value) == (
        f"scheduler 'far' of far-pkg 1.0 needs plugin API {needs[0]}.{needs[1]}, "
        f"and this engine offers {offers[0]}.{offers[1]}: {way_out}."
    )


def test_an_older_minor_works(site: FakeSite) -> None:  # P5
    site.scheduler("near")
    assert site.host(api=(1, 1)).load_scheduler("near", {}).plugin.requires_api == (1, 0)


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (
            {"package_not_there": "enginebay[ray]"},
            "executor 'ray' needs the package package_not_there: pip install 'enginebay[ray]'",
        ),
        (
            {"not_there.inside": "a>=1", "nor_there": "b", "json": "json"},
            "executor 'ray' needs the packages not_there.inside and nor_there: pip install 'a>=1' 'b'",
        ),
    ],
)
def test_missing_packages(site: FakeSite, needs: dict[str, str], said: str) -> None:
    site.plugin(
        "executors",
        "ray",
        f"@hookimpl\ndef enginebay_register_executors():\n"
        f"    return [ExecutorPlugin(name='ray', factory=make, requires_modules={needs!r})]",
    )
    host = site.host()
    with pytest.raises(PluginBroken) as caught:
        host.load_executor("ray", {})
    assert str(caught.value) == said
    assert host.descriptor(Kind.EXECUTOR, "ray").requires_modules == needs  # describing it works all the same


def test_one_module_of_two_kinds_is_registered_once(site: FakeSite) -> None:
    site.add(
        "both-pkg",
        entry_points={"executors": {"both": "both_plugin"}, "schedulers": {"both": "both_plugin"}},
        modules={
            "both_plugin": HEAD
            + """
steps = []

@hookimpl
def enginebay_register_executors():
    return [ExecutorPlugin(name="both", factory=make)]

@hookimpl
def enginebay_register_schedulers():
    return [SchedulerPlugin(name="both", factory=make)]

@hookimpl
def enginebay_engine_stopped():
    steps.append(1)
"""
        },
    )
    host = site.host()
    host.load_executor("both", {})
    host.load_scheduler("both", {})
    host.hooks.engine_stopped()
    assert sys.modules["both_plugin"].steps == [1]


OPTIONS = """
from typing import Annotated, Literal
from pydantic import Field, model_validator

class Opts(Options):
    bind_cpus: bool = False
    ring_slots: Annotated[int, Field(ge=1)] = 4
    mode: Literal["a", "b"] = "a"
    size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _both(self):
        if self.bind_cpus and self.mode == "b":
            raise ValueError("mode b binds nothing")
        return self

@hookimpl
def enginebay_register_executors():
    return [ExecutorPlugin(name="mp", factory=make, options=Opts)]
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worker_count": 2}, "worker_count: unknown option."),
        ({"ring_slot": 2}, "ring_slot: unknown option. Did you mean 'ring_slots'?"),
        (
            {"ring_slots": 0, "mode": "c", "worker_count": 2, "size": "x", "bind_cpus": "maybe"},
            (
                "bind_cpus: must be true or false, and is 'maybe'; ring_slots: must be at least 1, and is 0; "
                "mode: must be 'a' or 'b', and is 'c'; "
                "size: must be a whole number or must be 'auto', and is 'x'; worker_count: unknown option."
            ),
        ),
        ({"bind_cpus": True, "mode": "b"}, "mode b binds nothing."),
    ],
)
def test_options_are_validated_all_at_once(site: FakeSite, options: dict[str, object], said: str) -> None:
    site.plugin("executors", "mp", OPTIONS)
    with pytest.raises(OptionsRejected) as caught:
        site.host().load_executor("mp", options)
    assert str(caught.value) == (
        f"engine.toml: executor 'mp' rejects [executor.options]: {said} "
        f"Known options: bind_cpus, mode, ring_slots, size"
    )


def test_options_for_a_plugin_that_has_none(site: FakeSite) -> None:
    site.scheduler("plain")
    with pytest.raises(OptionsRejected) as caught:
        site.host().load_scheduler("plain", {"x": 1}, "--set")
    assert str(caught.value) == (
        "--set: scheduler 'plain' rejects [scheduler.options]: x: unknown option. Known options: none"
    )
