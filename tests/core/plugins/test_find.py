"""Finding plugins: metadata only, every name with its package, and errors that help."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import EntryPoint

import pytest

from enginebay.errors import PluginClash, PluginNotFound
from enginebay.interfaces import Kind
from enginebay.plugins import Installed, PluginHost
from support.fake_dist import FakeSite


def test_listing_imports_no_plugin(site: FakeSite) -> None:  # P2
    module = site.plugin("executors", "boom", "raise RuntimeError('imported')")
    found = PluginHost().installed(Kind.EXECUTOR)
    assert Installed(kind=Kind.EXECUTOR, name="boom", package="boom-pkg", version="1.0", module=module) in found
    assert any(i.name == "uni" and i.package == "enginebay" for i in found)
    assert module not in sys.modules


def test_two_packages_with_one_name(site: FakeSite) -> None:  # P1
    site.executor("mp", package="first-mp", version="1.2")
    site.executor("mp", package="second-mp", version="0.3")
    with pytest.raises(PluginClash) as caught:
        site.host().load_executor("mp", {})
    assert str(caught.value) == (
        "executor 'mp' is offered by 2 installed packages, and none of them is used: "
        "first-mp 1.2 (module first_mp_plugin) and second-mp 0.3 (module second_mp_plugin). Uninstall all but one."
    )
    assert not {"first_mp_plugin", "second_mp_plugin"} & set(sys.modules)


def test_a_clash_hurts_nobody_who_asks_for_another_name(site: FakeSite) -> None:  # P1
    site.executor("mp", package="first-mp")
    site.executor("mp", package="second-mp")
    site.executor("solo")
    host = site.host()
    assert host.load_executor("solo", {}).identity.package == "solo-pkg"
    assert [[i.package for i in group] for group in host.clashes()] == [["first-mp", "second-mp"]]


def test_unknown_name_with_a_close_match(site: FakeSite) -> None:  # P3
    for name in ("uni", "mp"):
        site.executor(name, package=f"{name}-pkg", version="0.1.0")
    with pytest.raises(PluginNotFound) as caught:
        site.host().load_executor("unni", {})
    assert str(caught.value) == (
        "No executor named 'unni' is installed. Did you mean 'uni'? Installed: mp (mp-pkg 0.1.0), uni (uni-pkg 0.1.0)"
    )


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            Kind.EXECUTOR,
            "fcfs",
            "No executor named 'fcfs' is installed. 'fcfs' is a scheduler. Installed: mp (mp-pkg 1.0)",
        ),
        (
            Kind.SCHEDULER,
            "mp",
            "No scheduler named 'mp' is installed. 'mp' is an executor. Installed: fcfs (fcfs-pkg 1.0)",
        ),
        (
            Kind.EXECUTOR,
            "multiproc",  # as elsewhere
            "No executor named 'multiproc' is installed. Did you mean 'mp'? Installed: mp (mp-pkg 1.0)",
        ),
        (
            Kind.RUNNER,
            "v9",
            (
                "No runner named 'v9' is installed. Installed: none; "
                "a package offers one in the entry-point group enginebay.runners"
            ),
        ),
        (Kind.EXECUTOR, "zzz", "No executor named 'zzz' is installed. Installed: mp (mp-pkg 1.0)"),
    ],
)
def test_unknown_names(site: FakeSite, kind: Kind, name: str, message: str) -> None:  # P3
    site.executor("mp")
    site.scheduler("fcfs")
    with pytest.raises(PluginNotFound) as caught:
        site.host().descriptor(kind, name)
    assert str(caught.value) == message


def test_the_first_copy_of_a_package_is_it(site: FakeSite, tmp_path: object) -> None:
    site.executor("twin", package="twin-pkg", version="2.0")
    stale = FakeSite(site.folder.parent / "stale")
    stale.executor("twin", package="Twin_pkg", version="1.0")
    stale.executor("gone", package="renamed-pkg", version="1.0")
    site.add("renamed-pkg", "2.0")  # the newer one offers nothing any more
    sys.path.append(str(stale.folder))
    try:
        host = PluginHost()
        assert [i.version for i in host.installed(Kind.EXECUTOR) if i.name == "twin"] == ["2.0"]
        assert not host.clashes()
        assert "gone" not in {i.name for i in host.installed(Kind.EXECUTOR)}
    finally:
        sys.path.remove(str(stale.folder))


def test_damaged_metadata_hides_only_itself(site: FakeSite, caplog: pytest.LogCaptureFixture) -> None:  # P2
    site.add("damaged", entry_points={"executors": {"lost": "somewhere"}})
    (site.folder / "damaged-1.0.dist-info" / "entry_points.txt").write_text("[enginebay.executors]\nno equals sign\n")
    site.add("binary")
    (site.folder / "binary-1.0.dist-info" / "entry_points.txt").write_bytes(b"[enginebay.executors]\nx = \xff\xfe")
    site.executor("nameless", package="nameless-pkg")
    (site.folder / "nameless_pkg-1.0.dist-info" / "METADATA").unlink()
    site.executor("fine")
    with caplog.at_level(logging.WARNING, "enginebay"):
        names = {i.name for i in PluginHost().installed(Kind.EXECUTOR)}
    assert {"fine", "uni", "nameless"} <= names
    assert "the entry points of package damaged cannot be read" in caplog.text


def test_entry_points_of_no_package_and_of_other_groups() -> None:
    entries = [
        EntryPoint(name="x", value="x_module", group="enginebay.runners"),
        EntryPoint(name="y", value="y_module", group="console_scripts"),
    ]
    assert PluginHost(entry_points=entries).installed() == (
        Installed(kind=Kind.RUNNER, name="x", package="unknown", version="?", module="x_module"),
    )
