"""The folder in which one running engine keeps its sockets and other names: private, locked, and cleaned up after.

Layout: ``ROOT/NAME/lock`` is held (``flock``) as long as the engine lives, whatever ends it, and
``ROOT/NAME/manifest`` lists what it took. A folder whose lock can be taken belongs to nobody any more, and the next
start removes it, with the named segments of its manifest. A folder whose lock is held is never touched.
"""

from enginebay.runfolder._folder import (
    MAX_SOCKET_PATH,
    LazyRunFolder,
    RunFolder,
    folders_of,
    live_folders,
    run_root,
    socket_path,
    sweep,
)

__all__ = [
    "MAX_SOCKET_PATH",
    "LazyRunFolder",
    "RunFolder",
    "folders_of",
    "live_folders",
    "run_root",
    "socket_path",
    "sweep",
]
