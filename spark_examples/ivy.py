"""Fetches Java libraries and their dependencies from Maven Central, by the Ivy that PySpark's wheel contains.

Everything lands below the cache folder, Ivy's home included, and nothing of `~/.m2` or `~/.ivy2` is read: a half-filled
local Maven repository makes Ivy fail. `BARNABAS_MAVEN_REPOSITORY` names a mirror of Maven Central.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from barnabas.spark_examples import INSTALL
from barnabas.spark_examples.java import cache_folder, find_java, say

MAVEN_CENTRAL = "https://repo1.maven.org/maven2/"
MANIFEST = "manifest.json"
ATTEMPTS = 3


class FetchFailed(RuntimeError):
    """Ivy could not fetch what was asked for; the message ends with its last lines."""


@dataclass(frozen=True, slots=True)
class Library:
    """One library by its Maven coordinates."""

    organisation: str
    name: str
    version: str


def pyspark_jars() -> Path:
    """The folder of jars inside the installed PySpark.

    Raises FetchFailed when PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FetchFailed(f"PySpark is not installed: {INSTALL}")
    return Path(spec.origin).parent / "jars"


def ivy_home() -> Path:
    """Ivy's own folder (also for `spark.jars.ivy`)."""
    return cache_folder() / "ivy"


def maven_repository() -> str:
    """The address of Maven Central, or of its mirror; ends with a slash."""
    return os.environ.get("BARNABAS_MAVEN_REPOSITORY", MAVEN_CENTRAL).rstrip("/") + "/"


def ivy_settings() -> Path:
    """The settings file of Ivy (also for `spark.jars.ivySettings`): Maven Central or its mirror, and nothing else."""
    text = (
        "<ivysettings>\n"
        '  <settings defaultResolver="central"/>\n'
        f"  <caches defaultCacheDir={quoteattr(str(ivy_home() / 'cache'))}/>\n"
        f'  <resolvers><ibiblio name="central" m2compatible="true" root={quoteattr(maven_repository())}/></resolvers>\n'
        "</ivysettings>\n"
    )
    path = ivy_home() / "ivysettings.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(path)
    return path


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file: of several processes that want the same download one fetches and the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_complete(folder: Path, libraries: Sequence[Library]) -> bool:
    """Whether a folder holds every file that was fetched for just these libraries, each with its full size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        wanted = [f"{library.organisation}:{library.name}:{library.version}" for library in libraries]
        return manifest["libraries"] == wanted and all(
            (folder / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def fetch(folder: Path, libraries: Sequence[Library], *, excluded: Sequence[tuple[str, str]] = (), title: str) -> Path:
    """Make `folder` hold the jars of the libraries and of all they need; returns it.

    It appears whole or not at all. An interrupted download goes on where Ivy's cache left off.
    Raises FetchFailed.
    """
    if is_complete(folder, libraries):
        return folder
    with exclusive(folder.with_name(folder.name + ".lock")):
        if is_complete(folder, libraries):
            return folder
        say(f"Fetching {title} into {folder} ...")
        for leftover in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _resolve(staging, libraries, excluded)
            _write_manifest(staging, libraries)
            shutil.rmtree(folder, ignore_errors=True)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        say(f"{title}: {len(list(folder.glob('*.jar')))} jars")
    return folder


def _resolve(staging: Path, libraries: Sequence[Library], excluded: Sequence[tuple[str, str]]) -> None:
    module = staging / "ivy.xml"
    module.write_text(_ivy_module(libraries, excluded))
    for attempt in range(1, ATTEMPTS + 1):
        with exclusive(ivy_home() / ".lock"):
            problem = _run_ivy(module, staging)
        if problem is None:
            return
        if attempt < ATTEMPTS:
            say(f"  attempt {attempt} failed, trying again")
        if attempt == ATTEMPTS - 1:  # what an interrupted Ivy left in its cache may be the trouble itself
            shutil.rmtree(ivy_home() / "cache", ignore_errors=True)
    raise FetchFailed(f"Ivy could not fetch {', '.join(library.name for library in libraries)}:\n{problem}")


def _ivy_module(libraries: Sequence[Library], excluded: Sequence[tuple[str, str]]) -> str:
    dependencies = "".join(
        f"    <dependency org={quoteattr(library.organisation)} name={quoteattr(library.name)} "
        f'rev={quoteattr(library.version)} conf="default-&gt;default"/>\n'
        for library in libraries
    )
    exclusions = "".join(f"    <exclude org={quoteattr(org)} module={quoteattr(name)}/>\n" for org, name in excluded)
    return (
        '<ivy-module version="2.0">\n  <info organisation="barnabas" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{dependencies}{exclusions}  </dependencies>\n</ivy-module>\n"
    )


def _run_ivy(module: Path, staging: Path) -> str | None:
    """Run Ivy once, telling each download; returns None, or its last lines if it failed."""
    [jar] = pyspark_jars().glob("ivy-*.jar")
    command: list[str | Path] = [
        find_java(),
        "-Xmx256m",
        "-jar",
        jar,
        "-settings",
        ivy_settings(),
        "-ivy",
        module,
        "-confs",
        "default",
    ]
    command += ["-types", "jar", "bundle", "-retrieve", f"{staging}/[artifact]-[revision](-[classifier]).[ext]"]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines.append(line.rstrip())
            if download := re.match(r"downloading .*/(\S+\.jar)", line):
                say(f"  {download[1]}")
    failed = ivy.returncode != 0 or any("FAILED" in line or "UNRESOLVED" in line for line in lines)
    return "\n".join(lines[-30:]) if failed else None


def _write_manifest(folder: Path, libraries: Sequence[Library]) -> None:
    files = {path.name: path.stat().st_size for path in sorted(folder.glob("*.jar"))}
    missing = [library.name for library in libraries if f"{library.name}-{library.version}.jar" not in files]
    if missing:
        raise FetchFailed(f"Ivy reported success, but there is no jar of {', '.join(missing)}")
    names = [f"{library.organisation}:{library.name}:{library.version}" for library in libraries]
    (folder / MANIFEST).write_text(json.dumps({"libraries": names, "files": files}, indent=1))
