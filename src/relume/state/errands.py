"""What the agent asks of its scribe, and what it hears from it: a line of JSON each, through two pipes.

Neither end knows the other's insides: the agent has no torch, the scribe no run.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Save(msgspec.Struct, frozen=True, tag=True):
    """Write the newest mirror. `facts` go into the manifest: what the run's bits depend on."""

    facts: dict[str, Any]


class Load(msgspec.Struct, frozen=True, tag=True):
    """Put the newest checkpoint that verifies into the mirror."""


class PassedOver(msgspec.Struct, frozen=True):
    """A checkpoint that was not loaded, and why."""

    path: str
    reason: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The scribe has imported what it needs."""


class Saved(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint is durable and `latest` names it; `note` says what did not go as it should all the same."""

    step: int
    path: str
    size: int
    seconds: float
    note: str = ""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It was not written, or not loaded. `kind` is the sort of trouble, for telling each sort once (see `disk`)."""

    step: int
    kind: str
    reason: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The mirror's generation 0 holds the checkpoint of `step`."""

    step: int
    path: str
    facts: dict[str, Any]
    passed_over: tuple[PassedOver, ...]


class NothingLoaded(msgspec.Struct, frozen=True, tag=True):
    """No checkpoint verifies: none is there if `passed_over` is empty."""

    passed_over: tuple[PassedOver, ...]


Request = Save | Load
Reply = Ready | Saved | Failed | Loaded | NothingLoaded

_encode = msgspec.json.Encoder().encode
_requests = msgspec.json.Decoder(Request)
_replies = msgspec.json.Decoder(Reply)


def line(message: Request | Reply) -> bytes:
    """Return `message` as a line."""
    return _encode(message) + b"\n"


def request(data: bytes) -> Request:
    """Return the request in a line. Raises `msgspec.DecodeError`."""
    return _requests.decode(data)


def reply(data: bytes) -> Reply:
    """Return the reply in a line. Raises `msgspec.DecodeError`."""
    return _replies.decode(data)
