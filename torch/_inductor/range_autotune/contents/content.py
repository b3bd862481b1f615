"""
Values as digests of their content, the same in every process if and only if that is.

Functions count by their compiled code, defaults, closures, and the globals and module
attributes that they read; objects by their class and attributes. Line numbers and comments
do not count.
"""

from __future__ import annotations

import hashlib
from typing import Any

from . import content_of_code  # noqa: F401  # registers what counts of code
from .content_of_values import content_of, Names, Seen, Unhashable


def content_digest(value: Any) -> str:
    """A digest of any value; raises Unhashable where it has none."""
    return digest(_whole_content(value))


def content_text(value: Any) -> str:
    """
    All that counts of a value, as text: names that its code uses among it.

    Raises Unhashable as ``content_digest`` does.
    """
    return repr(_whole_content(value))


def digest(content: Any) -> str:
    """Of a value whose repr says all."""
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _whole_content(value: Any) -> Any:
    names = Names()
    try:
        content = content_of(value, Seen(names))
        while names.matter and not names.met <= names.of_modules:
            names = Names(frozenset(names.met))
            content = content_of(value, Seen(names))
    except RecursionError:
        raise Unhashable("something that contains itself") from None
    environment = names.environment
    return (content, environment) if environment else content
