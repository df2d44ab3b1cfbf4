"""The hook ``enginebay_graph_passes``: whose passes are taken, in which order, and how a broken offer is named."""

from __future__ import annotations

import pytest

from enginebay.errors import PluginBroken
from enginebay.plugins import PluginHost
from support.fake_dist import FakeSite

PASSES = """
def nothing(graph_module, context):
    pass

@hookimpl
def enginebay_graph_passes():
    return {passes}
"""
RUNNER = """
@hookimpl
def enginebay_register_runners():
    return [RunnerPlugin(name={name!r}, factory=make)]
"""
EXTENSION = """
@hookimpl
def enginebay_register_worker_extensions():
    return [WorkerExtensionPlugin(name={name!r}, factory=make)]
"""


def runner(site: FakeSite, name: str, passes: str) -> None:
    site.plugin("runners", name, RUNNER.format(name=name) + PASSES.format(passes=passes))


def extension(site: FakeSite, name: str, passes: str) -> None:
    site.plugin("worker_extensions", name, EXTENSION.format(name=name) + PASSES.format(passes=passes))


def told(host: PluginHost, extensions: list[str], name: str = "drawn") -> list[tuple[str, str]]:
    loaded = [host.load_runner(name, {}), *host.load_worker_extensions(extensions, {})]
    return [(one.name, one.package) for one in host.graph_passes(loaded)]


ONE = "[GraphPass(name={name!r}, summary='', apply=nothing{more})]"


def test_the_runners_come_first_and_each_has_its_package(site: FakeSite) -> None:
    runner(site, "drawn", "[GraphPass(name=n, summary='', apply=nothing) for n in ('one', 'two')]")
    extension(site, "late", ONE.format(name="three", more=""))
    extension(site, "soon", ONE.format(name="early", more=", before=('two',)"))
    host = site.host()
    assert told(host, ["late", "soon"]) == [
        ("one", "drawn-pkg 1.0"),
        ("three", "late-pkg 1.0"),
        ("early", "soon-pkg 1.0"),
        ("two", "drawn-pkg 1.0"),
    ]


def test_those_of_plugins_that_are_not_in_force_are_not_taken(site: FakeSite) -> None:
    runner(site, "other", ONE.format(name="others", more=""))
    runner(site, "drawn", ONE.format(name="ours", more=""))
    host = site.host()
    host.load_runner_plugin("other")  # as when the runner is chosen
    assert told(host, []) == [("ours", "drawn-pkg 1.0")]


def test_a_plugin_without_the_hook_brings_none(site: FakeSite) -> None:
    site.runner("plain")
    assert told(site.host(), [], "plain") == []


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ("1 / 0", "enginebay_graph_passes of drawn_pkg_plugin raised ZeroDivisionError: division by zero."),
        ("None", "enginebay_graph_passes of drawn_pkg_plugin must return a list of GraphPass."),
        ("[nothing]", "enginebay_graph_passes of drawn_pkg_plugin must return a list of GraphPass."),
        (ONE.format(name="a b", more=""), "graph pass 'a b': its name must be an identifier."),
        ("[GraphPass(name='x', summary='', apply=3)]", "graph pass 'x': its apply cannot be called."),
        (ONE.format(name="x", more=", after='y'"), "graph pass 'x': its after is 'y', and must be a tuple of names."),
        (ONE.format(name="x", more=", before=[]"), "graph pass 'x': its before is [], and must be a tuple of names."),
        (
            ONE.format(name="x", more=", tolerance=-1"),
            "graph pass 'x': its tolerance is -1, and must be a number that is not negative.",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(site: FakeSite, passes: str, said: str) -> None:
    runner(site, "drawn", passes)
    with pytest.raises(PluginBroken) as caught:
        told(site.host(), [])
    assert str(caught.value) == f"runner 'drawn' of drawn-pkg 1.0 is broken: {said}"


def test_an_order_that_cannot_be_kept_is_told(site: FakeSite) -> None:
    runner(site, "drawn", ONE.format(name="x", more=", after=('no_such',)"))
    with pytest.raises(PluginBroken, match=r"^graph pass 'x' of drawn-pkg 1\.0 says it runs after 'no_such', and no"):
        told(site.host(), [])
