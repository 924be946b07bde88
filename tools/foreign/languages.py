"""Clients written in other languages: downloads their packages and builds their programs in the cache folder.

Needs Node.js with npm, or Go, on the PATH (Go also at its usual place, /usr/local/go).
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from barnabas.spark_examples.ivy import exclusive
from barnabas.spark_examples.java import cache_folder, say

USUAL_GO = Path("/usr/local/go/bin/go")
# The first build of franz-go takes two minutes on two idle processors, and longer on busy ones.
BUILD_TIMEOUT_S = 900


class ToolchainMissing(RuntimeError):
    """The language is not installed; the message says what is missing."""


class BuildFailed(RuntimeError):
    """npm or Go failed; the message ends with its output."""


def find_node() -> Path:
    """The `node` to use.

    Raises ToolchainMissing if it or npm is missing.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise ToolchainMissing("Node.js with npm is not installed (Debian: apt-get install nodejs npm)")
    return Path(node)


def find_go() -> Path:
    """The `go` to use.

    Raises ToolchainMissing.
    """
    on_path = shutil.which("go")
    if on_path is not None:
        return Path(on_path)
    if USUAL_GO.exists():
        return USUAL_GO
    raise ToolchainMissing("Go is not installed (https://go.dev/dl)")


def node_modules(sources: Path) -> Path:
    """The folder with the packages of the lock file in `sources`, for NODE_PATH; `npm ci` installs them once.

    Raises ToolchainMissing, BuildFailed.
    """
    find_node()
    manifests = [sources / "package.json", sources / "package-lock.json"]
    folder = cache_folder() / "node" / f"{sources.name}-{_digest(manifests)}"
    installed = folder / "node_modules"
    with exclusive(folder.with_name(folder.name + ".lock")):
        if (folder / ".complete").exists():
            return installed
        say(f"Fetching the npm packages of {sources.name} ...")
        folder.mkdir(parents=True, exist_ok=True)
        for manifest in manifests:
            shutil.copy(manifest, folder)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(cache_folder() / "node" / "cache")]
        _run(["npm", "ci", *options], folder, {})
        (folder / ".complete").touch()
    return installed


def go_program(sources: Path, *, of_tests: bool = False) -> Path:
    """The program built from the Go module in `sources`, or its test binary; built once for each state of its files.

    Raises ToolchainMissing, BuildFailed.
    """
    go = find_go()
    files = sorted(path for path in sources.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    program = cache_folder() / "go" / "bin" / f"{sources.name}{'-tests' * of_tests}-{_digest(files)}"
    with exclusive(program.with_name(program.name + ".lock")):
        if program.exists():
            return program
        say(f"Building {sources.name} with Go ...")
        unfinished = program.with_suffix(f".{os.getpid()}")
        command = ["test", "-c"] if of_tests else ["build"]
        _run([str(go), *command, "-p", "2", "-o", str(unfinished), "."], sources, go_environment())
        unfinished.replace(program)
    return program


def go_environment() -> dict[str, str]:
    """The environment variables with which Go finds modules, and what it has built, in the cache folder."""
    caches = {"GOMODCACHE": cache_folder() / "go" / "modules", "GOCACHE": cache_folder() / "go" / "build"}
    flags = {"GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false", "CGO_ENABLED": "0"}
    return {name: str(path) for name, path in caches.items()} | flags


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=BUILD_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        raise BuildFailed(f"{' '.join(command)} did not end within {BUILD_TIMEOUT_S} s") from expired
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
