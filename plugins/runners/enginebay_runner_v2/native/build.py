"""Compiles the C++ of this folder on first use, and finds what was compiled before; torch is not imported.

Decision: the library lies at ``CACHE/native/KEY/COMPILER.so``. KEY stands for the sources, torch's version, the
processor's flags and ours; COMPILER for the compiler, and without one whatever lies under KEY is good. A digest at its
end shows a library that was cut or damaged before the loader maps it (a cut one kills the process that maps it). It is
written beside its place and renamed. So is each object file, in ``COMPILER/``: a build that ended with a short run of
the engine is gone on with by the next; they go when the library is there. The lock spares a second process the same
work; a lock that does not come free in time is passed over, and both results are the same.
A violating change imports torch.utils.cpp_extension (slow), writes under the final name, or links OpenMP (``pool.h``).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from enginebay.models import cache_home

__all__ = ["BuildFailed", "build", "compiler", "find", "folder", "parts", "unwritable"]

FLAGS = ("-std=c++20", "-O3", "-march=native", "-pthread", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-w")
_HERE = Path(__file__).parent
_SECONDS = 900.0
"""How long a compiler may take for a file, and how long another process's build is waited for."""


class BuildFailed(Exception):
    """There is no library, and the message says why in one line."""


def compiler() -> str | None:
    """The C++ compiler's path: ``$CXX``, else the first of c++, g++ and clang++ on the path."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for found in map(shutil.which, names) if found), None)


def folder() -> Path:
    """Where libraries of these sources, this torch and this processor lie."""
    digest = hashlib.sha256()
    for source in sorted((*_HERE.glob("*.cpp"), *_HERE.glob("*.h"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update("\0".join((importlib.metadata.version("torch"), platform.machine(), _processor(), *FLAGS)).encode())
    return cache_home() / "native" / digest.hexdigest()[:24]


def find() -> Path | None:
    """A whole library that was built before, by this compiler or, where there is none, by any."""
    at = folder()
    path = compiler()
    candidates = [at / f"{_name(path)}.so"] if path else sorted(at.glob("*.so"))
    return next((candidate for candidate in candidates if _whole(candidate)), None)


def unwritable() -> Path | None:
    """What keeps a library from being written: the folder that exists and gives no leave, or a file in its place."""
    at = folder()
    there = next(path for path in (at, *at.parents) if path.exists())
    return None if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else there


def parts() -> tuple[int, int]:
    """Of the files to compile, how many an unfinished build has done, and how many there are."""
    path, sources = compiler(), _sources()
    return (len(list((folder() / _name(path)).glob("*.o"))) if path else 0), len(sources)


def build() -> Path:
    """The library, compiled now if it must be; raises ``BuildFailed``."""
    if found := find():
        return found
    path = compiler()
    if path is None:
        raise BuildFailed("no C++ compiler (c++, g++ or clang++; or set CXX)")
    at = folder()
    try:
        at.mkdir(parents=True, exist_ok=True)
        with _locked(at / ".lock") as alone:
            if alone:  # whoever was killed in the middle left something
                for left in at.glob(".build-*"):
                    shutil.rmtree(left, ignore_errors=True)
            return find() or _compile(path, at)
    except OSError as error:
        raise BuildFailed(f"cannot write to {at}: {error.strerror}; set ENGINEBAY_CACHE to another folder") from error


def _compile(path: str, at: Path) -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildFailed("torch is not installed")
    torch = Path(spec.origin).parent
    libraries = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"]
    kept = at / _name(path)
    kept.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=at, prefix=".build-") as scratch:

        def compile_one(source: Path) -> str:
            target = kept / f"{source.stem}.o"
            if not target.exists():
                made = Path(scratch, target.name)
                _run([path, *FLAGS, "-isystem", str(torch / "include"), "-c", str(source), "-o", str(made)])
                made.rename(target)
            return str(target)

        with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 8)) as pool:
            objects = list(pool.map(compile_one, _sources()))
        built = Path(scratch, "library.so")
        try:
            _run([path, "-shared", "-o", str(built), *objects, *libraries])
        finally:  # one that cannot be linked (a machine that lost its power left half of it) is made anew
            shutil.rmtree(kept, ignore_errors=True)
        with built.open("ab") as file:
            file.write(hashlib.sha256(built.read_bytes()).digest())
            file.flush()
            os.fsync(file.fileno())
        final = at / f"{_name(path)}.so"
        built.rename(final)
        return final


def _sources() -> list[Path]:
    return sorted(_HERE.glob("*.cpp"))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no reason"]
        )
        raise BuildFailed(f"{command[0]} ended with {done.returncode}: {lines[0]}")


def _whole(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return len(content) > 32 and hashlib.sha256(content[:-32]).digest() == content[-32:]


def _name(path: str) -> str:
    """A compiler's version without a process: its file is another one when it is."""
    real = os.path.realpath(path)
    stat = os.stat(real)
    return hashlib.sha256(f"{real} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]


def _processor() -> str:
    """What -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = ("flags", "Features", "cpu family", "model\t", "vendor_id")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(names)))


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether the lock came in time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline, alone = time.monotonic() + _SECONDS, False
    try:
        while not alone and time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                time.sleep(0.05)
        yield alone
    finally:
        os.close(descriptor)
