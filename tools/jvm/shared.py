"""Runs Kafka's command-line tools one after another in one Java process, because starting one for each run would take
most of the time.

The tools are unmodified: their `main` is called with their arguments, and standard streams are files. Tools exit
through `org.apache.kafka.common.utils.Exit`, which reports the status and keeps the shutdown hooks; these run when
`main` returns. argparse4j, the argument parser of some tools, ends the process itself for invalid arguments: that ends
the tool, too, and the next run gets a new process.
"""

import logging
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from py4j.java_gateway import (
    CallbackServerParameters,
    GatewayClient,
    GatewayParameters,
    JavaGateway,
    find_jar_path,
    launch_gateway,
)
from py4j.protocol import ERROR, REFERENCE_TYPE, Py4JError, Py4JJavaError, get_return_value

from barnabas.spark_examples.java import find_java
from tools.foreign.kafka import ORACLE_VERSION, SMALL_JVM, kafka_runtime

_OUR_OWN_EXCEPTION = "An exception was raised by the Python Proxy."
_END_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The exit status of a tool and its output."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output, without empty ones."""
        return [line for line in self.out.splitlines() if line.strip()]


class _ExitProcedure:
    """Replaces `System.exit`: records the first status and unwinds the tool."""

    class Java:
        implements = ("org.apache.kafka.common.utils.Exit$Procedure",)

    def __init__(self) -> None:
        self.status: int | None = None

    def execute(self, status: int, message: str | None) -> None:
        """Called by Java instead of ending the process."""
        if self.status is None:
            self.status = status
        raise SystemError(f"exit {status}")  # Java receives an exception, of whatever kind, and leaves the tool


class _ShutdownHooks:
    """Replaces `Runtime.addShutdownHook`: keeps the hooks that a tool registers."""

    class Java:
        implements = ("org.apache.kafka.common.utils.Exit$ShutdownHookAdder",)

    def __init__(self) -> None:
        self._hooks: list[Any] = []

    def addShutdownHook(self, name: str, runnable: Any) -> None:
        """Called by Java."""
        self._hooks.append(runnable)

    def run(self) -> None:
        """Run the hooks."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.run()

    def forget(self) -> None:
        """Drop the hooks, which ended with their process."""
        self._hooks = []


class _Client(GatewayClient):  # type: ignore[misc]
    """Raises Java's exceptions itself. If a Spark was started in this Python process, PySpark looks up every exception
    of py4j in Spark's Java, even one from another Java process.
    """

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        answer = super().send_command(command, retry, binary)
        if not binary and answer.startswith(ERROR + REFERENCE_TYPE):
            target, name = (*command.split("\n"), "", "")[1:3]
            get_return_value(answer, self, target, name)
        return answer


class _Gateway(JavaGateway):  # type: ignore[misc]
    def _create_gateway_client(self) -> GatewayClient:
        return _Client(gateway_parameters=self.gateway_parameters)


class SharedJvm:
    """A Java process with Kafka's classes that runs one tool after another; a context manager."""

    java: Any
    """The root of its Java packages."""

    def __init__(self, version: str = ORACLE_VERSION) -> None:
        self._runtime = kafka_runtime(version)
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-tools-")
        self._in, self._out, self._err = (Path(self._folder.name) / name for name in ("in", "out", "err"))
        self._exit, self._hooks = _ExitProcedure(), _ShutdownHooks()
        self._start()

    def _start(self) -> None:
        command = self._runtime.java_command("Main")
        options = [option for option in command[1:-3] if option not in SMALL_JVM]
        # The process ends with its standard input: without a reference the garbage collector would close that.
        port, self._process = launch_gateway(
            classpath=self._runtime.classpath,
            javaopts=["-Xmx384m", *SMALL_JVM[1:], *options],
            java_path=str(find_java()),
            jarpath=find_jar_path(),
            die_on_exit=True,
            return_proc=True,
        )
        self._gateway = _Gateway(
            gateway_parameters=GatewayParameters(port=port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        self.java = self._gateway.jvm
        self._take_over_exit()
        self.java.java.lang.System.setOut(self._print_stream(self._out))
        self.java.java.lang.System.setErr(self._print_stream(self._err))

    def _print_stream(self, path: Path) -> Any:
        appending = self.java.java.io.FileOutputStream(str(path), True)  # so truncation suffices
        return self.java.java.io.PrintStream(appending, True, "UTF-8")

    def _take_over_exit(self) -> None:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs the exception that ends a tool
        server = self._gateway.java_gateway_server
        python_port = self._gateway.get_callback_server().get_listening_port()
        server.resetCallbackClient(server.getCallbackClient().getAddress(), python_port)
        exit_class = self.java.org.apache.kafka.common.utils.Exit
        exit_class.setExitProcedure(self._exit)
        exit_class.setHaltProcedure(self._exit)
        exit_class.setShutdownHookAdder(self._hooks)

    def run(self, main_class: str, arguments: Sequence[str], *, stdin: str = "") -> ToolRun:
        """Call a tool's `main`. An uncaught exception gives status 1 and goes to `err`, as in a separate process."""
        self._exit.status = None
        self._in.write_text(stdin)
        for path in (self._out, self._err):
            path.write_bytes(b"")
        array = self._gateway.new_array(self.java.java.lang.String, len(arguments))
        for index, argument in enumerate(arguments):
            array[index] = argument
        java_class = self.java
        for name in main_class.split("."):
            java_class = getattr(java_class, name)
        failure, status = "", 0
        system_in = self.java.java.io.FileInputStream(str(self._in))
        self.java.java.lang.System.setIn(system_in)
        try:
            try:
                java_class.main(array)
            except Py4JJavaError as error:
                failure, status = str(error), 1
            self._hooks.run()
            system_in.close()
        except Py4JError:
            self._exit.status = self._ended()
            self._start()
        if self._exit.status is not None:
            failure, status = "", self._exit.status
        out, err = (path.read_text("utf-8", errors="replace") for path in (self._out, self._err))
        return ToolRun(status, out, err.split(_OUR_OWN_EXCEPTION)[0] + failure)

    def _ended(self) -> int:
        """The status of a process that a tool has ended.

        Raises subprocess.TimeoutExpired if it is still running.
        """
        status = int(self._process.wait(_END_TIMEOUT_S))
        self._hooks.forget()
        self._gateway.close()
        self._forget_process()
        return status

    def _forget_process(self) -> None:
        """Wait for the end of the process. A thread of py4j reads its output, so `communicate` must not be used."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(_END_TIMEOUT_S)
        self._process.stdout.close()

    def __enter__(self) -> "SharedJvm":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._gateway.shutdown()
        except Py4JError:
            self._gateway.close()
        try:
            self._forget_process()
        except subprocess.TimeoutExpired:  # a tool hangs
            self._process.kill()
            self._forget_process()
        self._folder.cleanup()
