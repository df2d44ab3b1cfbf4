"""The packaging lists that must agree: folders, wheel packages, entry points, mypy's packages, the linter's roots."""

from __future__ import annotations

import re
import zipfile
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import pytest

from enginebay.interfaces import Kind
from support.repository import CORE, ROOT, plugin_folders, pyproject

PROJECT = pyproject()
FOLDERS = [folder.name for folder in plugin_folders()]
ENTRY_POINTS = [
    (group, name, module)
    for group, entries in PROJECT["project"]["entry-points"].items()
    for name, module in entries.items()
]


def test_plugin_folders_are_in_every_list() -> None:
    assert FOLDERS, "no plugin folders found"
    expected = ["core/enginebay", *sorted(str(f.relative_to(ROOT)) for f in plugin_folders())]
    assert sorted(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == sorted(expected)
    assert sorted(PROJECT["tool"]["mypy"]["packages"]) == sorted(["enginebay", *FOLDERS])
    assert sorted(PROJECT["tool"]["importlinter"]["root_packages"]) == sorted(["enginebay", *FOLDERS])
    tops = [module.split(".")[0] for _, _, module in ENTRY_POINTS]
    assert sorted(top for top in tops if top != "enginebay") == sorted(FOLDERS)  # some stand in the core itself

    [layers] = [c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["name"].startswith("Plugins stand above")]
    assert sorted(layers["layers"][0].split(" | ")) == sorted(FOLDERS)


def test_contributing_draws_the_layers_that_are_checked() -> None:
    [layers] = [one for one in PROJECT["tool"]["importlinter"]["contracts"] if one["name"] == "Layers of the core"]
    drawn = re.search(r"```\n(cli > .*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert drawn
    assert " ".join(drawn[1].split()) == " > ".join(layers["layers"])


def test_source_roots_are_the_same_for_hatch_and_mypy() -> None:
    roots = PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]
    assert roots == PROJECT["tool"]["mypy"]["mypy_path"]
    assert {str(f.parent.relative_to(ROOT)) for f in plugin_folders()} <= set(roots)


def test_every_package_is_typed_and_importable() -> None:
    for folder in [CORE, *plugin_folders()]:
        assert (folder / "py.typed").is_file(), folder
        assert (folder / "__init__.py").is_file(), folder


@pytest.mark.parametrize(("group", "name", "module"), ENTRY_POINTS)
def test_entry_point_registers_its_name(group: str, name: str, module: str) -> None:
    [kind] = [kind for kind in Kind if kind.group == group]
    described = [plugin.name for plugin in getattr(import_module(module), kind.register_hook)()]
    assert described == [name], "one entry point per plugin, named as its descriptor"


def test_installed_metadata_is_what_pyproject_says() -> None:
    installed = {(e.group, e.name, e.value) for e in distribution("enginebay").entry_points}
    assert installed == {*ENTRY_POINTS, ("console_scripts", "enginebay", "enginebay.cli:main")}, (
        "the entry points changed after the project was installed: pip install -e . again"
    )


def test_wheel_holds_every_module_and_nothing_else(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        entry_points = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
    expected = {
        file.relative_to(folder.parent).as_posix()
        for folder in [CORE, *plugin_folders()]
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert names == expected
    for group, name, module in ENTRY_POINTS:
        assert f"[{group}]" in entry_points
        assert f"{name} = {module}" in entry_points


def test_what_make_installs_is_pinned() -> None:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            assert "==" in line, line
            name, version = line.split("==")
            pins[name] = version
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["dev"] + extras["testing"]
    names = [re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in wanted]
    missing = [name for name in names if name not in pins and name != "enginebay"]
    assert missing == []
    assert pins["torch"] == "2.13.0"


def test_the_version_is_said_once_and_twice_the_same() -> None:
    import enginebay

    assert PROJECT["project"]["version"] == enginebay.__version__ == distribution("enginebay").version
