"""Tracing a module that somebody names as ``package.module:Class``, with errors that say what to do about it."""

from __future__ import annotations

import importlib
import inspect
import linecache
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay.errors import GraphError, did_you_mean, in_words, one_line

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torch.nn import Module


def trace(named: str, *, folders: Sequence[Path] = ()) -> GraphModule:
    """The graph of the module class ``package.module:Class``, made without arguments and traced by ``torch.fx``.

    It is imported as Python finds it, and from ``folders`` before; the working directory is no such place. Raises
    ``GraphError`` for what cannot be found, made or traced, and says where.
    """
    import torch.fx

    module = _make(named, _find(named, folders))
    try:
        return torch.fx.symbolic_trace(module)
    except Exception as error:
        raise GraphError(f"{named} cannot be traced: {in_words(error)}{_at(error)}") from error


def _find(named: str, folders: Sequence[Path]) -> type[Module]:
    import torch

    path, colon, name = named.partition(":")
    if not colon or not all(part.isidentifier() for part in [*path.split("."), name]):
        raise GraphError(f"{named!r:.200} names no class: package.module:Class is expected, as in my_models.small:Net")
    found = getattr(_import(path, folders), name, None)
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        return found
    defined = vars(sys.modules[path]).items()
    classes = [key for key, value in defined if isinstance(value, type) and issubclass(value, torch.nn.Module)]
    what = "class" if found is None else "torch.nn.Module class of the name"
    known = f"It has: {', '.join(classes)}" if classes else "It has no torch.nn.Module class at all."
    raise GraphError(f"module {path} has no {what} {name}.{did_you_mean(name, classes)} {known}")


def _import(path: str, folders: Sequence[Path]) -> Any:
    for folder in folders:
        if not folder.is_dir():
            raise GraphError(f"there is no folder {folder} to import from")
    try:
        with _looking_in(folders):
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
            raise GraphError(
                f"module {path} needs the module {error.name}, which is not installed{_at(error)}"
            ) from error
        raise GraphError(f"there is no module {path}: Python finds no {error.name}.{_is_it_here(path)}") from error
    except (Exception, SystemExit) as error:
        raise GraphError(f"importing {path} raised {in_words(error)}{_at(error)}") from error


@contextmanager
def _looking_in(folders: Sequence[Path]) -> Iterator[None]:
    """Python's own path without the working directory, after the folders that were named."""
    before = list(sys.path)
    sys.path[:] = [*(str(folder.absolute()) for folder in folders), *(entry for entry in before if entry)]
    try:
        yield
    finally:
        sys.path[:] = before


def _is_it_here(path: str) -> str:
    first = path.partition(".")[0]
    here = [name for name in (f"{first}.py", first) if Path(name).exists()]
    if here:
        return f" {here[0]} is in the working directory, where nothing is looked for unless it is named: --path ."
    return " Is its package installed here? A folder to look in is named with --path FOLDER."


def _make(named: str, cls: type[Module]) -> Module:
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]  # no signature to be had: making it will tell
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if required:
        raise GraphError(
            f"{named} is made with {', '.join(required)}, and only a class without such arguments can be traced: "
            f"derive one that sets them, as in class Mine({cls.__name__}): def __init__(self): super().__init__(…)"
        )
    try:
        return cls()
    except Exception as error:
        raise GraphError(f"making {named} raised {in_words(error)}{_at(error)}") from error


def _at(error: BaseException) -> str:
    """Where in the stranger's own code it happened: the last line that is neither torch's nor Python's nor ours."""
    import torch

    foreign = (
        str(Path(torch.__file__).parent),
        str(Path(__file__).parent),
        str(Path(inspect.__file__).parent / "importlib"),
    )
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*foreign, "<")):
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return one_line(f" ({frame.filename}:{frame.lineno}, in {frame.name}: {line})")
    return ""
