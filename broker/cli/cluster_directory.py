"""The directories of `serve --brokers N`: `broker1` and so on, one for each broker, and in the first of them the
metadata store's file, a note of the processes, and the brokers' secret."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.broker.security.broker_secrets import SECRET_BYTES

STORE_FILE: Final = "znodes.sqlite"
NOTE_FILE: Final = "brokers.json"
SECRET_FILE: Final = "brokers.secret"

ADDRESS_KEYS: Final = ("listeners", "barnabas.http.address")
"""Keys in which port 0 means any free port, which a broker keeps: the note has them."""

_META_FILE: Final = "meta.properties"
_OF_ONE_BROKER: Final = (_META_FILE, "metadata.sqlite")
"""Files of a directory that a single broker has used."""

_SECRET: Final = re.compile(r"[0-9a-f]{64}")

_BROKER: Final = re.compile(r"broker([0-9]{1,10})")


def broker_directory(directory: str, node_id: int) -> str:
    """The directory of a broker of the cluster in `directory`."""
    return os.path.join(directory, f"broker{node_id}")


def is_of_one_broker(directory: str) -> bool:
    """Whether a single broker, which belongs to no cluster of this machine, has used the directory."""
    return any(os.path.exists(os.path.join(directory, name)) for name in _OF_ONE_BROKER)


def brokers_in(directory: str) -> list[int]:
    """The ids of the brokers that have a directory here, and have used it."""
    matches = map(_BROKER.fullmatch, _names(directory))
    found = (match for match in matches if match and os.path.exists(os.path.join(directory, match[0], _META_FILE)))
    return sorted(int(match[1]) for match in found)


def options_for(brokers: Collection[int], node_id: int | None) -> str:
    """The options that start these brokers. `node_id` is the default of the first one's id, if any."""
    first, last = min(brokers), max(brokers)
    return f"--brokers {last - first + 1}" + (f" --node-id {first}" if first != node_id else "")


def not_of_one_broker(directories: Sequence[str], node_id: int, *, has_own_store: bool) -> str | None:
    """The reason, as text, why a broker must not be started in these directories: they belong to a cluster. A broker
    that `has_own_store` is no broker of a cluster either."""
    otherwise = "or choose another one for a single broker (--data-dir)"
    for directory in directories:
        if (brokers := _brokers_of_before(directory)) and not is_of_one_broker(directory):
            return (
                f"{directory} is the directory of a cluster, not of one broker: start it with"
                f" {options_for(brokers, node_id)}, {otherwise}"
            )
        match = _BROKER.fullmatch(os.path.basename(directory))
        cluster = os.path.dirname(directory)
        if has_own_store and match and os.path.exists(os.path.join(cluster, STORE_FILE)):
            clusters = ",".join(dict.fromkeys(map(os.path.dirname, directories)))
            options = options_for(_brokers_of_before(cluster) or [int(match[1])], None)
            return (
                f"{directory} is a directory of one of a cluster's brokers: start the cluster with {options} --data-dir"
                f" {clusters}, {otherwise}"
            )
    return None


def _brokers_of_before(directory: str) -> list[int]:
    """The brokers that were started there last, if known: others may have been drained."""
    brokers = brokers_in(directory)
    try:
        noted = [int(each) for each in read_note(Path(directory, NOTE_FILE))] if brokers else []
    except (OSError, ValueError):
        noted = []
    return noted or brokers


def left_out(directories: Sequence[str], asked: Collection[int]) -> Iterator[str]:
    """A hint, if any, about former brokers that are not started now and still have partitions."""
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
        f"{which} not started, and partitions lie in {', '.join(places[each] for each in sorted(places))}: those"
        f" without another replica are unavailable. Start with {options_for([*asked, *places], min(asked))}, and drain"
        f" brokers before you remove them (barnabas brokers drain {max(places)})"
    )


def kept_secret(directory: Path) -> str | None:
    """The brokers' present secret; None if there is none, it is damaged, or other users could read it. A new parent has
    to give it to brokers beside those that have survived a former parent.

    Raises: OSError.
    """
    path = directory / SECRET_FILE
    try:
        with open(path, errors="replace") as file:
            is_for_others = os.fstat(file.fileno()).st_mode & 0o077
            kept = file.read().strip()
    except FileNotFoundError:
        return None
    return kept if _SECRET.fullmatch(kept) and not is_for_others else None


def new_secret(directory: Path, random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """Create a new secret of the brokers, in a file that other users cannot read.

    Raises: OSError.
    """
    path = directory / SECRET_FILE
    secret = random_bytes(SECRET_BYTES).hex()
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret + "\n")
    os.replace(temporary, path)
    return secret


def read_note(path: Path) -> dict[str, Any]:
    """A former parent's note of its brokers, by their ids: `pid`, `store_port`, the `secret_digest` of the secret of
    the process, and the addresses `asked` for and `given`; empty without a note. Errors: OSError, ValueError if it is
    malformed."""
    try:
        return {str(int(node_id)): _noted(noted) for node_id, noted in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(repr(error)) from error


def _noted(noted: Mapping[str, Any]) -> dict[str, Any]:
    pid, store_port = int(noted["pid"]), int(noted["store_port"])
    if not (0 <= pid < 1 << 31 and 0 <= store_port < 1 << 16):
        raise ValueError(f"pid {pid}, store_port {store_port}")
    asked, given = (
        {key: str(noted[name][key]) for key in ADDRESS_KEYS if key in noted[name]} for name in ("asked", "given")
    )
    secret_digest = str(noted.get("secret_digest", ""))
    return {"pid": pid, "store_port": store_port, "secret_digest": secret_digest, "asked": asked, "given": given}


def _has_partitions(directory: str) -> bool:
    """Whether there are logs that were not deleted: `TOPIC-PARTITION`."""
    return any(re.fullmatch(r".+-[0-9]+", name) for name in _names(directory))


def _names(directory: str) -> list[str]:
    """The names in a directory; none if it cannot be read, which is reported when it is used."""
    try:
        return os.listdir(directory)
    except OSError:
        return []
