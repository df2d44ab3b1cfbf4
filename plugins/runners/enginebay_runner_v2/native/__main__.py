"""``python -m enginebay_runner_v2.native``: compile the kernels now, on all cores, and not beside the first run."""

from __future__ import annotations

import sys

from enginebay_runner_v2.native.build import BuildFailed, build, find, parts

__all__ = ["main"]


def main() -> int:
    """Exit code 0, or 1 with the reason on stderr; what is there already is left as it is, without a word."""
    if find() is None:
        done, files = parts()
        print(f"Compiling {files - done} files of kernels, once for this machine.", flush=True)  # noqa: T201  # a command
        try:
            build()
        except BuildFailed as error:
            print(error, file=sys.stderr)  # noqa: T201  # a command
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
