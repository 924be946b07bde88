"""A broker gets its surroundings as arguments (`broker/environment.py`): nothing under wire/, storage/, controller/ and
broker/ uses the machine's own time (the event loop's included), randomness, files, network, threads, processes or
surroundings, except for the edges below.

A seam is a row of SEAMS; an edge is a file and a name in it, with the reason.

Between the files of a room, imports do not lead in a circle: ROOMS_WITHOUT_CIRCLES.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("wire", "storage", "controller", "broker", "barnabas")
OTHER_PROGRAMS: Final = ("broker/cli/", "broker/client/", "barnabas/testing/")
"""Commands and their client live in the user's world; what tests are handed is made of the machine's own."""


PATH_METHODS: Final = "exists|mkdir|unlink|rename|replace|stat|open|rmdir|chmod|owner|group|walk"
"""Of `pathlib.Path`, by names that other things have, too."""
OF_PATHS_ALONE: Final = (
    "read_text|write_text|read_bytes|write_bytes|iterdir|is_file|is_dir|is_symlink|is_mount|is_socket|is_fifo"
    "|is_block_device|is_char_device|touch|r?glob|samefile|resolve|lstat|lchmod|symlink_to|hardlink_to|readlink"
)
TOLD_THE_TIME: Final = {"time.strftime": 2, "time.gmtime": 1, "time.ctime": 1, "time.asctime": 1}
"""Functions that ask for the time only when they have fewer arguments than that."""


@dataclass(frozen=True)
class Seam:
    """A part of the machine that only edges may use.

    `names` are regular expressions of full names, as an import resolves them; `methods` of calls on something that no
    import names, as they are written. Both end with "(timeout)" where a call says how long it waits. `edges` has
    reasons by file and name.
    """

    names: str
    methods: str = r"(?!)"
    edges: Mapping[tuple[str, str], str] = field(default_factory=dict)


SEAMS: Final = {
    "time": Seam(
        names=r"time\.(?!(struct_time|strptime|mktime)$).*|datetime\.(datetime|date)\.(now|utcnow|today)"
        r"|asyncio\.(sleep|timeout|timeout_at|wait_for)|(asyncio|concurrent|subprocess)\..*\(timeout\)"
        r"|barnabas\.clock\.SystemClock",
        methods=r".*loop(\(\))?\.(time|call_later|call_at)|.*\(timeout\)",
        edges={
            ("barnabas/clock.py", "time.time_ns"): "SystemClock",
            ("barnabas/clock.py", "time.monotonic_ns"): "SystemClock",
            ("barnabas/threads.py", "Event().wait(timeout)"): "OsThreads: a thread rests, so that others get on",
            ("broker/environment.py", "barnabas.clock.SystemClock"): "the default",
            ("broker/cluster/metadata.py", "barnabas.clock.SystemClock"): "the default, where a broker gives its own",
            ("broker/network/connections.py", "barnabas.clock.SystemClock"): "as in metadata.py",
            (
                "controller/coordination/zookeeper.py",
                "barnabas.clock.SystemClock",
            ): "ZooKeeper's clock is the machine's, whatever the broker's is",
            ("barnabas/timers.py", "asyncio.timeout"): "has no end until one of the broker's timers says now",
            ("barnabas/timers.py", "loop.time"): "ends a wait at once",
            ("broker/api/dispatch.py", "time.perf_counter_ns"): "measures how long requests take",
            ("broker/environment.py", "time.monotonic"): "the default",
            ("broker/http/connections.py", "asyncio.get_running_loop().call_later"): "how long an HTTP client may take",
            ("broker/http/pages.py", "asyncio.sleep"): "rests after a page for as long as that took",
            ("broker/http/pages.py", "loop.time"): "rests after a page for as long as that took",
            ("broker/network/reply_queue.py", "asyncio.sleep"): "looks again whether the transport has sent its bytes",
            ("broker/observability/event_loop_lag.py", "self._loop.call_later"): "measures how late the loop is",
            ("broker/observability/event_loop_lag.py", "self._loop.time"): "measures how late the loop is",
            ("broker/replication/fetch_operation.py", "loop.call_later"): "the patience of a client",
            ("broker/timers.py", "self._loop.call_later"): "asks the clock again when its first timer should be due",
            ("broker/upkeep/cleaner_process.py", "time.monotonic"): "bytes per second of a disk",
            ("broker/upkeep/cleaner_process.py", "time.sleep"): "bytes per second of a disk",
            ("controller/coordination/loop_handler.py", "self._loop.call_later"): "shows ZooKeeper that the loop moves",
            ("controller/coordination/loop_handler.py", "super().create_connection(timeout)"): "how long ZooKeeper may "
            "take to accept a connection",
            (
                "controller/coordination/zookeeper.py",
                "asyncio.wait_for",
            ): "how long ZooKeeper may take to answer first",
        },
    ),
    "randomness": Seam(
        names=r"random\..*|secrets\..*|uuid\.uuid[14]|os\.(urandom|getrandom)",
        edges={
            ("broker/environment.py", "os.urandom"): "the default",
            ("broker/environment.py", "secrets.randbelow"): "the default",
        },
    ),
    "files": Seam(
        names=r"open|io\.open|os\.(?!path\b|environ|urandom|getrandom|strerror|fspath|getpid).*"
        r"|os\.path\.(l?exists|isfile|isdir|islink|ismount|getsize|get[amc]time|realpath|same\w*)"
        rf"|pathlib\.Path\.({PATH_METHODS}|{OF_PATHS_ALONE})"
        r"|(shutil|tempfile|fcntl|mmap|glob|resource)\..*|sqlite3\.connect"
        r"|barnabas\.storage\.os_files\..*",
        methods=rf".*\.({OF_PATHS_ALONE})|.*(\b(path|directory|folder|file)\b[^.]*|\bPath\(.*\).*)\.({PATH_METHODS})",
        edges={
            ("barnabas/__init__.py", "os.path.isfile"): "says that links have become text",
            ("barnabas/__main__.py", "open"): "standard streams that are closed",
            ("barnabas/__main__.py", "os.devnull"): "standard streams that are closed",
            ("broker/cluster/metadata_store.py", "path.exists"): "SQLite's file",
            ("broker/security/sasl/urls.py", "open"): "the issuer's keys or token, in a thread",
            ("broker/environment.py", "barnabas.storage.os_files.OsFiles"): "the default",
            ("broker/environment.py", "barnabas.storage.os_files.boot_id"): "the default",
            ("broker/environment.py", "barnabas.storage.os_files.is_reserved_descriptor"): "the default",
            ("broker/cluster/login_file.py", "open"): "as key stores",
            ("broker/security/tls/key_stores.py", "open"): "key stores are this machine's files",
            ("broker/security/tls/key_stores.py", "os.stat"): "whether a key store has changed",
            ("broker/security/tls/key_stores.py", "os.memfd_create"): "OpenSSL reads keys from files alone",
            ("broker/security/tls/key_stores.py", "os.write"): "as os.memfd_create",
            ("broker/security/tls/key_stores.py", "os.close"): "as os.memfd_create",
            ("broker/security/tls/key_stores.py", "tempfile.NamedTemporaryFile"): "where there is no file in memory",
            ("broker/upkeep/cleaner_process.py", "barnabas.storage.os_files.OsFiles"): "another process, which is only "
            "started where it reaches the broker's files (`Files.is_shared`)",
            ("broker/upkeep/cleaner_process.py", "barnabas.storage.os_files.UnsyncedFiles"): "as OsFiles",
            ("broker/upkeep/cleaner_process.py", "barnabas.storage.os_files.lower_priority"): "as OsFiles",
            ("controller/coordination/stored_tree.py", "sqlite3.connect"): "SQLite reads and writes its file itself",
            ("controller/coordination/reserve.py", "open"): "beside SQLite's file",
            ("controller/coordination/reserve.py", "os.path.exists"): "beside SQLite's file",
            ("controller/coordination/reserve.py", "os.path.isfile"): "beside SQLite's file",
            ("controller/coordination/reserve.py", "os.stat"): "beside SQLite's file",
            ("controller/coordination/reserve.py", "os.statvfs"): "beside SQLite's file",
            ("controller/coordination/reserve.py", "os.unlink"): "beside SQLite's file",
            ("storage/os_files.py", "*"): "OsFiles",
        },
    ),
    "network": Seam(
        names=r"socket\.(?!SO_|SOL_|AF_|SOCK_|IPPROTO_|IPV6_|MSG_|SHUT_|gethostname).*|(ssl|selectors|socketserver)\..*"
        r"|select\.(?!POLL[A-Z]+|EPOLL[A-Z]+).*|(http|urllib)\.(client|request|server)\..*"
        r"|asyncio\.(start_server|start_unix_server|open_connection|open_unix_connection)"
        r"|barnabas\.network\.OsNetwork",
        methods=r".*\.(create_server|create_unix_server|create_connection|create_unix_connection"
        r"|create_datagram_endpoint|getaddrinfo|getnameinfo|connect_accepted_socket|sock_\w+)",
        edges={
            ("broker/environment.py", "barnabas.network.OsNetwork"): "the default",
            ("barnabas/network.py", "loop.create_server"): "OsNetwork",
            ("barnabas/network.py", "asyncio.get_running_loop().create_connection"): "OsNetwork",
            ("barnabas/network.py", "asyncio.get_running_loop().getaddrinfo"): "OsNetwork",
            ("barnabas/network.py", "socket.has_dualstack_ipv6"): "OsNetwork",
            ("barnabas/network.py", "socket.socket"): "OsNetwork",
            ("barnabas/network.py", "socket.fromfd"): "the last bytes of a connection, past its transport",
            ("broker/network/tls_handshakes.py", "ssl.SSLContext"): "the type of what the event loop is handed",
            ("broker/security/tls/contexts.py", "*"): "contexts of TLS, and a handshake in memory",
            ("broker/network/connection.py", "select.poll"): "whether a peer that is not read from has hung up",
            ("broker/security/sasl/urls.py", "http.client.HTTPConnection"): "the issuer's keys or token, in a thread",
            ("broker/security/sasl/urls.py", "http.client.HTTPException"): "the issuer's keys or token, in a thread",
            ("broker/security/sasl/urls.py", "http.client.HTTPResponse"): "the issuer's keys or token, in a thread",
            ("broker/security/sasl/urls.py", "http.client.HTTPSConnection"): "the issuer's keys or token, in a thread",
            ("broker/security/sasl/urls.py", "urllib.request.url2pathname"): "the issuer's keys or token, in a thread",
            ("broker/network/file_sender.py", "select.poll"): "the kernel's way past a transport that has a socket",
            ("broker/network/file_sender.py", "socket.fromfd"): "the kernel's way past a transport that has a socket",
            ("controller/coordination/loop_handler.py", "select.poll"): "kazoo waits for ZooKeeper",
            ("controller/coordination/loop_handler.py", "socket.socket"): "kazoo connects to ZooKeeper",
            ("controller/coordination/zookeeper.py", "asyncio.get_running_loop().getaddrinfo"): "whether ZooKeeper's "
            "hosts have an address",
        },
    ),
    "threads": Seam(
        names=r"asyncio\.(to_thread|run_coroutine_threadsafe)|threading\.(Thread|Timer)|_thread\..*|concurrent\.futures\..*Executor"
        r"|barnabas\.threads\.OsThreads|barnabas\.controller\.coordination\.owner_thread\.OwnerThread",
        methods=r".*\.(run_in_executor|set_default_executor)",
        edges={
            ("barnabas/threads.py", "*"): "OsThreads",
            ("broker/environment.py", "barnabas.threads.OsThreads"): "the default",
            (
                "broker/environment.py",
                "barnabas.controller.coordination.owner_thread.OwnerThread",
            ): "the default",
            (
                "controller/coordination/embedded.py",
                "barnabas.controller.coordination.owner_thread.OwnerThread",
            ): "the default, where a broker gives its own",
            ("broker/upkeep/cleaner_process.py", "threading.Thread"): "a process of its own",
            ("controller/coordination/loop_handler.py", "threading.Thread"): "kazoo's threads",
            ("controller/coordination/owner_thread.py", "threading.Thread"): "the default of EmbeddedStore's worker",
            ("controller/coordination/zookeeper.py", "asyncio.to_thread"): "kazoo's threads end",
        },
    ),
    "processes": Seam(
        names=r"(subprocess|multiprocessing)\.(?!(?:PIPE|DEVNULL|STDOUT)$).*|asyncio\.create_subprocess_\w+"
        r"|concurrent\.futures\.(\w+\.)*ProcessPoolExecutor|signal\.(raise_signal|pthread_kill|setitimer|alarm)|pty\..*",
        methods=r".*\.(subprocess_exec|subprocess_shell)",
        edges={
            ("broker/upkeep/cleaner_process.py", "signal.raise_signal"): "ends itself",
            ("broker/upkeep/compaction.py", "subprocess.Popen"): "a large pass over files that another process reaches",
        },
    ),
    "surroundings": Seam(
        names=r"sys\.executable|os\.(environ|getenv|getcwd|uname|cpu_count)|os\.path\.(abspath|expanduser|expandvars)|socket\.gethostname"
        r"|pathlib\.Path\.(cwd|home|expanduser|absolute)",
        methods=r".*\.(expanduser|absolute)",
        edges={
            ("broker/configuration/config.py", "os.path.abspath"): "a path of the configuration",
            ("broker/configuration/config.py", "os.path.expanduser"): "the data directory where none is configured",
            ("barnabas/network.py", "socket.gethostname"): "OsNetwork",
            ("broker/environment.py", "sys.executable"): "the default",
        },
    ),
}


class Use(NamedTuple):
    """A name in a file."""

    path: str
    line: int
    name: str
    is_method: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"


@cache
def uses() -> list[Use]:
    found: list[Use] = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            if not path.startswith(OTHER_PROGRAMS):
                found += uses_of(ast.parse(file.read_text()), path)
    assert len(found) > 1_000
    return found


def uses_of(tree: ast.AST, path: str) -> Iterator[Use]:
    """Imported names with all their attributes, `open`, and methods of what is not imported; but for what asks for no
    time: `sleep(0)`, which gives others a turn, and what is told the time."""
    imported = dict(imports(tree))
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            if ast.unparse(node) == "asyncio.sleep(0)":
                continue
            called = full_name(node.func, imported) or ""
            if len(node.args) >= TOLD_THE_TIME.get(called, len(node.args) + 1):
                waiting.extend(node.args)
                continue
            is_method = isinstance(node.func, ast.Attribute) and not called
            timeout = "(timeout)" if says_how_long(node, is_method=is_method) else ""
            if is_method:
                yield Use(path, node.lineno, ast.unparse(node.func) + timeout, is_method=True)
            elif timeout:
                yield Use(path, node.lineno, called + timeout, is_method=False)
        name = full_name(node, imported)
        if name is not None and isinstance(node, ast.expr):
            yield Use(path, node.lineno, name, is_method=False)
            continue
        waiting.extend(ast.iter_child_nodes(node))


def says_how_long(call: ast.Call, *, is_method: bool) -> bool:
    """Whether a call waits for so long at most: by keyword, or as a thread's event and future are told."""
    if any(keyword.arg == "timeout" for keyword in call.keywords):
        return True
    return (
        is_method and bool(call.args) and isinstance(call.func, ast.Attribute) and call.func.attr in ("wait", "result")
    )


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def full_name(node: ast.AST, imported: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        owner = full_name(node.value, imported)
        if isinstance(node.value, ast.Call) and full_name(node.value.func, imported) == "pathlib.Path":
            owner = "pathlib.Path"
        return None if owner is None else f"{owner}.{node.attr}"
    if isinstance(node, ast.Name):
        return "open" if node.id == "open" else imported.get(node.id)
    return None


def is_reached(seam: Seam, use: Use) -> bool:
    return re.fullmatch(seam.methods if use.is_method else seam.names, use.name) is not None


@pytest.mark.parametrize("seam", SEAMS.values(), ids=SEAMS)
def test_only_edges_reach_for_the_real_one(seam: Seam) -> None:
    found = [use for use in uses() if is_reached(seam, use)]
    others = [use for use in found if not {(use.path, use.name), (use.path, "*")} & set(seam.edges)]
    assert not others, "\n".join(map(str, others))
    gone = set(seam.edges) - {(use.path, use.name) for use in found} - {(use.path, "*") for use in found}
    assert not gone, "edges that are none any more"


@pytest.mark.parametrize(
    ("source", "seam"),
    [
        ("import time\nnow = time.time()", "time"),
        ("from time import monotonic as now\nnow()", "time"),
        ("import datetime as d\nd.datetime.now()", "time"),
        ("loop.time()", "time"),
        ("self._loop.call_later(1, look)", "time"),
        ("asyncio.get_running_loop().call_at(1, look)", "time"),
        ("self._timers.call_later(1, look)", None),
        ("import asyncio\nasyncio.sleep(1)", "time"),
        ("import asyncio\nasyncio.sleep(0)", None),
        ("from asyncio import wait_for\nwait_for(answer, 1)", "time"),
        ("asyncio.get_running_loop().time()", "time"),
        ("class C:\n default: float = field(default_factory=time.time)\nimport time", "time"),
        ("import time\ntime.strftime('%Y')", "time"),
        ("import time\ntime.strftime('%Y', time.gmtime(moment))", None),
        ("import time\ntime.strftime('%Y', time.gmtime())", "time"),
        ("import time\ntime.clock_gettime(1)", "time"),
        ("from threading import Event\nEvent().wait(2)", "time"),
        ("self._is_over.wait(timeout=2)", "time"),
        ("await self._is_over.wait()", None),
        ("import asyncio\nasyncio.wait(tasks, timeout=2)", "time"),
        ("from asyncio import wait\nwait(tasks, timeout=2)", "time"),
        ("import asyncio\nasyncio.wait(tasks)", None),
        ("future.result(2)", "time"),
        ("future.result()", None),
        ("thread.join(timeout=2)", "time"),
        ("','.join(names)", None),
        ("self._clock.now_ms()", None),
        ("import random\nrandom.Random(7)", "randomness"),
        ("from uuid import uuid4\nuuid4()", "randomness"),
        ("import os\nids = os.urandom", "randomness"),
        ("self._random_bytes(16)", None),
        ("open('x')", "files"),
        ("import os\nos.rename('a', 'b')", "files"),
        ("import os\nos.path.join('a', 'b')", None),
        ("from pathlib import Path\nPath('x').read_text()", "files"),
        ("(directory / 'x').exists()", "files"),
        ("from pathlib import Path\nPath('x').exists()", "files"),
        ("from pathlib import Path as P\nP('x').stat()", "files"),
        ("import pathlib\n(pathlib.Path('x') / 'y').rename('z')", "files"),
        ("from pathlib import Path\nPath.unlink(found)", "files"),
        ("from pathlib import Path\nname = Path('x').name", None),
        ("from pathlib import Path\nPath.cwd()", "surroundings"),
        ("found.is_symlink()", "files"),
        ("from barnabas.storage.os_files import OsFiles\nfiles = OsFiles()", "files"),
        ("self._files.open('x')", None),
        ("self._files.exists(directory)", None),
        ("store.exists(path)", None),
        ("import sqlite3\nsqlite3.connect(path)", "files"),
        ("import asyncio\nasyncio.to_thread(job)", "threads"),
        ("asyncio.get_running_loop().run_in_executor(None, job)", "threads"),
        ("from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor()", "threads"),
        ("from threading import Lock\nLock()", None),
        ("self._threads.call(job)", None),
        ("import os\nos.environ['HOME']", "surroundings"),
        ("import socket\nsocket.create_connection(address)", "network"),
        ("from socket import socket as plain\nplain()", "network"),
        ("import asyncio\nasyncio.open_connection('x', 1)", "network"),
        ("loop.create_server(f, sock=s)", "network"),
        ("self._loop.sock_connect(s, address)", "network"),
        ("import socket\noption = socket.SO_RCVBUF", None),
        ("self._network.bind(None, 0)", None),
        ("import select\nselect.poll()", "network"),
        ("import select\nevents = select.POLLOUT", None),
        ("import subprocess\nsubprocess.run(['x'])", "processes"),
        ("import subprocess\nsubprocess.Popen(['x'], stdin=subprocess.PIPE)", "processes"),
        ("import subprocess\nend = subprocess.PIPE", None),
        ("from multiprocessing import Process\nProcess()", "processes"),
        ("import asyncio\nasyncio.create_subprocess_exec('x')", "processes"),
        ("loop.subprocess_exec(protocol, 'x')", "processes"),
    ],
)
def test_the_rule(source: str, seam: str | None) -> None:
    found = {name for name, each in SEAMS.items() for use in uses_of(ast.parse(source), "f") if is_reached(each, use)}
    assert found == ({seam} if seam else set())


ROOMS_WITHOUT_CIRCLES: Final = (
    "barnabas/broker",
    "barnabas/controller",
    "barnabas/spark_examples",
    "barnabas/storage",
    "barnabas/testing",
    "barnabas/wire",
    "benchmarks",
    "compat_tests",
    "tests",
    "tools",
)


def circle(sources: Mapping[str, str]) -> list[str]:
    """Modules of which each imports the one before, the last one the first, also for typing alone or inside of a
    function; empty if there are none."""
    graph = {module: imported_modules(source) & sources.keys() - {module} for module, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def imported_modules(source: str) -> set[str]:
    """All modules that a source imports, and what else it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("room", ROOMS_WITHOUT_CIRCLES)
def test_no_imports_lead_in_a_circle(room: str) -> None:
    paths = [file.relative_to(ROOT) for file in (ROOT / room).rglob("*.py")]
    sources = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): (ROOT / path).read_text() for path in paths
    }
    assert len(sources) > 1
    assert not circle(sources)


@pytest.mark.parametrize(
    ("first", "second", "is_circle"),
    [
        ("import b", "import a", True),
        ("from b import name", "def f():\n    from a import name", True),
        ("if TYPE_CHECKING:\n    from b import name", "import a", True),
        ("from b import name", "from c import name", False),
        ("import a", "", False),
    ],
)
def test_the_rule_of_circles(first: str, second: str, *, is_circle: bool) -> None:
    assert bool(circle({"a": first, "b": second})) is is_circle
