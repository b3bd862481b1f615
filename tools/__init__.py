"""The patch set's tools: ``python -m tools COMMAND``, or ``python -m tools --help``."""

import sys


if sys.version_info < (3, 11):  # noqa: UP036 - tells those on an older one
    raise SystemExit(
        "error: the tools of this patch set need Python 3.11 or newer, this is "
        f"{sys.version_info[0]}.{sys.version_info[1]}; run them with a newer python3 "
        "(they patch wheels of any CPython)"
    )
