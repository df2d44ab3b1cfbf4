"""The code of a graph: a Python file that stands alone, with the imports that it needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.fx import GraphModule

_KNOWN: Final = {
    "torch": "import torch",
    "device": "from torch import device",
    "inf": "from math import inf",
    "nan": "from math import nan",
    "NoneType": "from types import NoneType",
    "fx_pytree": "import torch.fx._pytree as fx_pytree",
    "pytree": "import torch.utils._pytree as pytree",
}
_OWN: Final = frozenset({"get_attr", "call_module"})


def code_text(graph_module: GraphModule, *, imports: Sequence[str] = ()) -> str:
    """The graph as a Python file with one function ``forward``, whose arguments are the graph's placeholders.

    Where the graph uses parameters or modules of the module that it was traced from, the first argument is ``self``,
    that module. ``imports``: modules that bring operators which are not torch's own.
    """
    graph = graph_module.graph
    generated = graph.python_code(root_module="self")
    body = re.sub(r"[ \t]+$", "", generated.src, flags=re.MULTILINE).strip() + "\n"
    if not any(node.op in _OWN for node in graph.nodes):
        body = re.sub(r"^def forward\(self(?:, )?", "def forward(", body, count=1, flags=re.MULTILINE)
    used = set(re.findall(r"[A-Za-z_]\w*", body))
    lines = [_import(name, value) for name, value in generated.globals.items() if name in used]
    lines = [*dict.fromkeys(lines), *(f"import {name}" for name in imports)]
    head = "".join(f"{line}\n" for line in sorted(lines, key=lambda line: (line.startswith("from"), line)))
    return f"{head}\n\n{body}" if head else body


def _import(name: str, value: Any) -> str:
    if name in _KNOWN:
        return _KNOWN[name]
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or qualified is None or "." in qualified or "<" in qualified:
        return f"# {name} stands for {value!r:.100}, which cannot be imported"
    return f"from {module} import {qualified}" + (f" as {name}" if qualified != name else "")
