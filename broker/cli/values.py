"""Parses the values of options: times, offsets, partitions, KEY=VALUE. Errors: usage errors that quote the text."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from barnabas.broker.cli import completion
from barnabas.broker.client.places import BeforeEnd, Earliest, Offset, Place, Since

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_AGO = re.compile(r"-(\d+)(ms|s|m|h|d|w)")

MOMENT_METAVAR = "TIME"
MOMENT_HELP = "2026-01-31T12:00 (local, unless it has a zone), ms since 1970, or -90s, -15m, -1h, -7d, -2w"


def moment_ms(text: str, now_ms: int | None = None) -> int:
    """A time in ms since 1970, from such a number, ISO 8601, or a duration before now (`-1h`)."""
    if text.isascii() and text.isdecimal():
        return int(text)
    if ago := _AGO.fullmatch(text):
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]])
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1_000))
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{text!r} is no time: expected {MOMENT_HELP}") from error


def since(text: str) -> Place:
    """The position of `--from-time`."""
    return Since(moment_ms(text))


def offset(text: str) -> Place:
    """The position of `--offset`: N, -N (N records before the end), `earliest` or `latest`."""
    if text == "earliest":
        return Earliest()
    if text == "latest":
        return BeforeEnd(0)
    if re.fullmatch(r"-?[0-9]+", text):
        return BeforeEnd(int(text[1:])) if text.startswith("-") else Offset(int(text))
    raise typer.BadParameter(f"{text!r} is no offset: expected a number, -N for N before the end, earliest or latest")


def offset_option(*names: str, help: str) -> Any:
    """A typer option with an offset (`offset`)."""
    return typer.Option(*names, metavar="OFFSET", parser=offset, autocompletion=completion.offsets, help=help)


def moment_option(*names: str, help: str) -> Any:
    """A typer option with a time (`since`); its help continues with the accepted forms of times."""
    return typer.Option(*names, metavar=MOMENT_METAVAR, parser=since, help=f"{help}: {MOMENT_HELP}.")


def topic_partitions(entries: Sequence[str], option: str) -> dict[str, set[int] | None]:
    """Parse TOPIC[:PARTITION,...] into a mapping, None for all partitions; `option` is named in errors.

    A topic that is given more than once has the partitions of all its entries.
    """
    wanted: dict[str, set[int] | None] = {}
    for entry in entries:
        name, colon, indexes = entry.partition(":")
        if not name or (colon and not re.fullmatch(r"[0-9]+(,[0-9]+)*", indexes)):
            raise typer.BadParameter(f"{entry!r} is not TOPIC[:PARTITION,...]", param_hint=option)
        before = wanted.get(name, set())
        if not colon or before is None:
            wanted[name] = None
        else:
            wanted[name] = before | {int(index) for index in indexes.split(",")}
    return wanted


def key_values(entries: Sequence[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """KEY=VALUE options as a mapping; `option` and its `form` are named in errors."""
    result = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{entry!r} is not {form}", param_hint=option)
        result[key.strip()] = value
    return result


FromTime = Annotated[Place | None, moment_option("--from-time", help="From the first record since then")]
