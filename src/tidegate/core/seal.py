"""Pages of state that only the holder of a key can write: HMAC-SHA256 around the snapshot codec.

    magic "TIDS" | 32 bytes HMAC-SHA256(key of the scope, page) | page, see `core/snapshot.py`

A checksum finds damage; whoever changes a page repairs it. With a key, a page that was changed, was
written without the key, or belongs to another scope (another shard) is a `StateError` before one
byte of it is interpreted. Page 0 lists the tags of all other pages, so that pages cannot be removed
or mixed with older ones either.

What a key does not do: pages are not encrypted, and a whole older state put back in place of the
newer one, or no state at all, cannot be told from the real one.

The key is never part of a page, a message, a `repr` or a run record.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from tidegate.errors import ConfigError, StateError

__all__ = ["SHORTEST_KEY", "StateKey", "open_pages"]

SHORTEST_KEY = 16
"""Bytes a key must have at least: 128 bits if it is random. Shorter ones are found by trying."""

_MAGIC = b"TIDS"
"""The first bytes of a sealed page."""

_TAG_BYTES = 32
"""The length of an HMAC-SHA256."""

_HIDDEN = "***"
"""What errors show instead of a key."""


class StateKey:
    """The key that seals and opens pages of state. It cannot be printed.

    Args:
        secret: At least `SHORTEST_KEY` bytes; text is taken as UTF-8. Make one with
            `openssl rand -hex 32` and keep it where secrets are kept.
        field: The name of the setting, for errors.

    Raises:
        ConfigError: It is shorter, or neither text nor bytes. The message does not show it.

    >>> key = StateKey("0123456789abcdef")
    >>> key
    StateKey(***)
    >>> bytes(key.open(key.seal(b"page", "shard 1"), "shard 1", "state page 0"))
    b'page'
    >>> key.open(key.seal(b"page", "shard 1"), "shard 2", "state page 0")
    Traceback (most recent call last):
        ...
    tidegate.errors.StateError: state page 0 was changed, or is sealed with another key
    """

    def __init__(self, secret: str | bytes, field: str = "state_key") -> None:
        if not isinstance(secret, str | bytes):
            raise ConfigError(field, _HIDDEN, "must be text or bytes")
        raw = secret.encode() if isinstance(secret, str) else secret
        if len(raw) < SHORTEST_KEY:
            raise ConfigError(
                field, _HIDDEN,
                f"must have at least {SHORTEST_KEY} bytes, such as from: openssl rand -hex 32",
            )  # fmt: skip
        self._secret = raw

    def __repr__(self) -> str:
        """Hide the key, also where the settings that hold it are printed."""
        return f"StateKey({_HIDDEN})"

    def seal(self, page: bytes, scope: str) -> bytes:
        """Return a page behind its tag.

        Args:
            page: From `tidegate.core.snapshot.encode`.
            scope: What the page belongs to. It opens only with the same scope.
        """
        return _MAGIC + self._tag(page, scope) + page

    def open(self, blob: bytes, scope: str, what: str) -> memoryview:
        """Return the page inside a sealed one.

        Args:
            blob: Untrusted bytes.
            scope: As given to `seal`.
            what: Its name in messages.

        Raises:
            StateError: It is not sealed, or not by this key for this scope.
        """
        if blob[: len(_MAGIC)] != _MAGIC:
            raise StateError(
                f"{what} is not sealed, and a state key is set: it was made without one, or by "
                "somebody who has none; remove the key or use a new checkpoint"
            )
        start = len(_MAGIC) + _TAG_BYTES
        page = memoryview(blob)[start:]
        if not hmac.compare_digest(blob[len(_MAGIC) : start], self._tag(page, scope)):
            raise StateError(f"{what} was changed, or is sealed with another key")
        return page

    def _tag(self, page: bytes | memoryview, scope: str) -> bytes:
        """Return the tag of a page. Each scope has a key of its own, derived from the secret."""
        scoped = hmac.digest(self._secret, scope.encode(), hashlib.sha256)
        return hmac.digest(scoped, page, hashlib.sha256)


def tag_of(blob: bytes) -> str:
    """Return the tag of a sealed page as hexadecimal digits."""
    return blob[len(_MAGIC) : len(_MAGIC) + _TAG_BYTES].hex()


def open_pages(
    key: StateKey | None, scope: str, pages: Mapping[int, bytes]
) -> dict[int, bytes | memoryview]:
    """Return the pages inside sealed ones; without a key, the pages as they are.

    Raises:
        StateError: A page does not open, or is sealed and there is no key.
    """
    if key is not None:
        return {page: key.open(blob, scope, f"state page {page}") for page, blob in pages.items()}
    for page, blob in pages.items():
        if blob[: len(_MAGIC)] == _MAGIC:
            raise StateError(f"state page {page} is sealed: give the state key it was made with")
    return dict(pages)


def check_tags(tags: object, pages: Mapping[int, bytes]) -> list[str]:
    """Return the tags of all pages but the first, as page 0 lists them.

    Args:
        tags: The list in page 0, which has been opened: it is what the flow wrote.
        pages: The sealed pages.

    Raises:
        StateError: A page is missing, is one too many, or is not the one that page 0 was written
            beside.
    """
    found = [tag_of(pages[page]) for page in sorted(pages) if page > 0]
    if not isinstance(tags, Sequence) or list(tags) != found:
        raise StateError(
            "the pages of the state are each sealed but do not belong together: one was removed, "
            "added or put back from an earlier state"
        )
    return found
