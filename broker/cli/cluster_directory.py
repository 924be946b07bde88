"""What lies in the directories of `serve --brokers N`: `broker1` and so on, one for each broker, and in the first of
them the metadata store's file and a note of the processes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

STORE_FILE: Final = "znodes.sqlite"
NOTE_FILE: Final = "brokers.json"

_META_FILE: Final = "meta.properties"
_OF_ONE_BROKER: Final = (_META_FILE, "metadata.sqlite")
"""Files by which a directory is known that one broker has used."""

_BROKER: Final = re.compile(r"broker([0-9]{1,10})")


def broker_directory(directory: str, node_id: int) -> str:
    """Where a broker of the cluster in `directory` has its own."""
    return os.path.join(directory, f"broker{node_id}")


def is_of_one_broker(directory: str) -> bool:
    """Whether one broker, which belongs to no cluster of this machine, has used the directory."""
    return any(os.path.exists(os.path.join(directory, name)) for name in _OF_ONE_BROKER)


def brokers_in(directory: str) -> list[int]:
    """The ids of the brokers that have a directory here, and have used it."""
    matches = map(_BROKER.fullmatch, _names(directory))
    found = (match for match in matches if match and os.path.exists(os.path.join(directory, match[0], _META_FILE)))
    return sorted(int(match[1]) for match in found)


def options_for(brokers: Collection[int], node_id: int) -> str:
    """The options that start these brokers, where the first one has `node_id` if nobody says."""
    first, last = min(brokers), max(brokers)
    return f"--brokers {last - first + 1}" + (f" --node-id {first}" if first != node_id else "")


def not_of_one_broker(directories: Sequence[str], node_id: int, *, has_own_store: bool) -> str | None:
    """Why a broker must not be started in these directories, in words: it would be a stranger in a cluster's. One that
    `has_own_store` is none of a cluster's brokers either."""
    for directory in directories:
        cluster = os.path.dirname(directory)
        if brokers_in(directory) and not is_of_one_broker(directory):
            which = f"{directory} is the directory of a cluster, not of one broker: start it with"
            options = _options_as_before(directory, node_id)
        elif has_own_store and _BROKER.fullmatch(os.path.basename(directory)) and _has_store(cluster):
            which = f"{directory} is the directory of one of a cluster's brokers: start that with"
            options = f"{_options_as_before(cluster, node_id)} --data-dir {cluster}"
        else:
            continue
        return f"{which} {options}, or choose another one for a single broker (--data-dir)"
    return None


def _has_store(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, STORE_FILE))


def _options_as_before(directory: str, node_id: int) -> str:
    """The options that start the brokers of a cluster which were started last, so far as anybody knows."""
    try:
        noted = [int(each) for each in read_note(Path(directory, NOTE_FILE))]
    except (OSError, ValueError):
        noted = []
    return options_for(noted or brokers_in(directory), node_id)


def left_out(directories: Sequence[str], asked: Collection[int]) -> Iterator[str]:
    """What to do about brokers of before that are not asked for, and still have partitions: a line, or none."""
    places = {
        node_id: broker_directory(directory, node_id)
        for directory in directories
        for node_id in brokers_in(directory)
        if node_id not in asked and _has_partitions(broker_directory(directory, node_id))
    }
    if not places:
        return
    ids = ", ".join(map(str, sorted(places)))
    which = f"broker {ids} is" if len(places) == 1 else f"brokers {ids} are"
    yield (
        f"{which} not started, and partitions lie in {', '.join(places[each] for each in sorted(places))}: what nobody"
        f" else has of them is unavailable. Start with {options_for([*asked, *places], min(asked))}, and drain"
        f" whoever is to go (barnabas brokers drain {max(places)})"
    )


def read_note(path: Path) -> dict[str, Any]:
    """What a former parent noted of its brokers, by their ids: `pid`, `store_port`, and the addresses that were `asked`
    for and `given`; nothing if it noted nothing. Errors: OSError, ValueError if it cannot be read."""
    try:
        note = json.loads(path.read_text())
        return {
            str(int(node_id)): {
                "pid": int(noted["pid"]),
                "store_port": int(noted["store_port"]),
                "asked": dict(noted["asked"]),
                "given": dict(noted["given"]),
            }
            for node_id, noted in note.items()
        }
    except FileNotFoundError:
        return {}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


def _has_partitions(directory: str) -> bool:
    """Whether there are logs that nobody has deleted: `TOPIC-PARTITION`."""
    return any(re.fullmatch(r".+-[0-9]+", name) for name in _names(directory))


def _names(directory: str) -> list[str]:
    """What is in a directory; nothing where it cannot be read, which is told when it is used."""
    try:
        return os.listdir(directory)
    except OSError:
        return []
