"""Sequence charts of a recording: a column for each client and each broker, a line for each request and response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from barnabas.testing.recording.recorded_request import RecordedRequest

COLUMN: Final = 44
TIME: Final = 9
"""The width of the time column, in characters."""

CUT: Final = "..."
"""The end of a text that is cut off."""

PIXELS: Final = 320
ROW: Final = 22
MARGIN: Final = 70


class _Line(NamedTuple):
    """An arrow between two columns at a time, in ms since the first."""

    time_ms: int
    start: int
    end: int
    label: str
    is_error: bool


def _participants(requests: Sequence[RecordedRequest]) -> list[str]:
    clients = dict.fromkeys(_client(each) for each in requests)
    brokers = sorted({each.request.broker for each in requests})
    return [*clients, *(f"broker {number}" for number in brokers)]


def _client(recorded: RecordedRequest) -> str:
    return recorded.client_id or "(no client id)"


def _lines(requests: Sequence[RecordedRequest]) -> list[_Line]:
    """Requests and their responses in order of time; those of the same ms in the order of the requests."""
    places = {name: place for place, name in enumerate(_participants(requests))}
    first_ms = requests[0].time_ms if requests else 0
    found: list[tuple[int, int, _Line]] = []
    for number, each in enumerate(requests):
        client, broker = places[_client(each)], places[f"broker {each.request.broker}"]
        asked = _Line(each.time_ms - first_ms, client, broker, repr_of(each), is_error=False)
        found.append((each.time_ms, 2 * number, asked))
        if each.answered_ms is not None and each.outcome != "no reply":
            is_error = each.outcome != "ok"
            reply = _Line(each.answered_ms - first_ms, broker, client, f"{each.api}: {each.outcome}", is_error)
            found.append((each.answered_ms, 2 * number + 1, reply))
    return [line for *_, line in sorted(found, key=lambda entry: entry[:2])]


def repr_of(recorded: RecordedRequest) -> str:
    """A short description of a request: API, version, and subjects."""
    request = recorded.request
    partitions = [f"{topic}-{index}" for topic, index in sorted(request.partitions)]
    topics = sorted(request.topics - {topic for topic, _ in request.partitions})
    about = [*partitions, *topics, *sorted(request.groups), *sorted(request.transactional_ids)]
    more = f" and {len(about) - 3} more" if len(about) > 3 else ""
    return f"{request.api} v{request.version} {', '.join(about[:3])}{more}".rstrip()


def text_chart(requests: Sequence[RecordedRequest]) -> str:
    """The chart as lines of text; empty for an empty recording."""
    names = _participants(requests)
    if not names:
        return ""
    rows = [" " * TIME + "".join(f"{_cut(name, COLUMN - 2):<{COLUMN}}" for name in names).rstrip()]
    for line in _lines(requests):
        cells = list(" " * (COLUMN * (len(names) - 1) + 1))
        for place in range(len(names)):
            cells[place * COLUMN] = "|"
        left, right = sorted((line.start * COLUMN, line.end * COLUMN))
        cells[left + 1 : right] = f" {_cut(line.label, right - left - 6)} ".center(right - left - 1, "-")
        if line.start < line.end:
            cells[right - 1] = ">"
        else:
            cells[left + 1] = "<"
        rows.append(f"{line.time_ms:>{TIME - 4}} ms {''.join(cells)}{'  !' if line.is_error else ''}")
    return "\n".join(rows)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - len(CUT)]}{CUT}"


def svg_chart(requests: Sequence[RecordedRequest]) -> str:
    """The chart as an SVG document, errors in red."""
    names, lines = _participants(requests), _lines(requests)
    width, height = MARGIN + PIXELS * max(1, len(names)), ROW * (len(lines) + 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace" '
        'font-size="11">',
        '<defs><marker id="end" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6" fill="none" stroke="context-stroke"/></marker></defs>',
    ]
    for place, name in enumerate(names):
        x = MARGIN + 20 + place * PIXELS
        parts.append(f'<text x="{x}" y="{ROW}" font-weight="bold">{escape(name)}</text>')
        parts.append(f'<line x1="{x}" y1="{ROW + 6}" x2="{x}" y2="{height - ROW}" stroke="#999"/>')
    for row, line in enumerate(lines):
        y = ROW * (row + 2) + 8
        start, end = (MARGIN + 20 + place * PIXELS for place in (line.start, line.end))
        color = "#c00" if line.is_error else "#000"
        parts.append(f'<text x="4" y="{y}" fill="#666">{line.time_ms} ms</text>')
        parts.append(
            f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="{color}" marker-end="url(#end)"/>'
            f'<text x="{min(start, end) + 12}" y="{y - 3}" fill="{color}">{escape(line.label)}</text>'
        )
    return "\n".join([*parts, "</svg>"])
