"""Many runs of Kafka's command-line tools in one Java process, as starting one for each would take most of the time.

The tools are unmodified: their `main` is called with their arguments, standard output and error are collected, and
`org.apache.kafka.common.utils.Exit`, through which all of them end, reports the status instead of ending the process.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, find_jar_path, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from tools.jvm.java import find_java
from tools.kafka_runtime import ORACLE_VERSION, SMALL_JVM, kafka_runtime

_OUR_OWN_EXCEPTION = "An exception was raised by the Python Proxy."


@dataclass(frozen=True, slots=True)
class ToolRun:
    """How a tool ended and what it printed."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output, without empty ones."""
        return [line for line in self.out.splitlines() if line.strip()]


class _ExitProcedure:
    """Stands in for `System.exit`: notes the first status and unwinds the tool."""

    class Java:
        implements = ("org.apache.kafka.common.utils.Exit$Procedure",)

    def __init__(self) -> None:
        self.status: int | None = None

    def execute(self, status: int, message: str | None) -> None:
        """Called by Java in place of ending the process."""
        if self.status is None:
            self.status = status
        raise SystemError(f"exit {status}")  # whatever it is, Java sees an exception and leaves the tool


class SharedJvm:
    """A Java process with Kafka's classes that runs one tool after another; a context manager."""

    def __init__(self, version: str = ORACLE_VERSION) -> None:
        runtime = kafka_runtime(version)
        command = runtime.java_command("Main")
        options = [option for option in command[1:-3] if option not in SMALL_JVM]
        # The process ends when its standard input does: without a reference the garbage collector would close that.
        port, self._process = launch_gateway(
            classpath=runtime.classpath,
            javaopts=["-Xmx384m", *SMALL_JVM[1:], *options],
            java_path=str(find_java()),
            jarpath=find_jar_path(),
            die_on_exit=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        self.java: Any = self._gateway.jvm
        self._take_over_exit()
        self._out, self._err = self._collect("setOut"), self._collect("setErr")

    def _take_over_exit(self) -> None:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it reports the exception that ends a tool
        server = self._gateway.java_gateway_server
        python_port = self._gateway.get_callback_server().get_listening_port()
        server.resetCallbackClient(server.getCallbackClient().getAddress(), python_port)
        self._exit = _ExitProcedure()
        self.java.org.apache.kafka.common.utils.Exit.setExitProcedure(self._exit)
        self.java.org.apache.kafka.common.utils.Exit.setHaltProcedure(self._exit)

    def _collect(self, setter: str) -> Any:
        buffer = self.java.java.io.ByteArrayOutputStream()
        getattr(self.java.java.lang.System, setter)(self.java.java.io.PrintStream(buffer, True, "UTF-8"))
        return buffer

    def run(self, main_class: str, arguments: Sequence[str]) -> ToolRun:
        """Call a tool's `main`; an exception that leaves it is status 1 and on `err`, as in a process of its own."""
        self._exit.status = None
        self._out.reset()
        self._err.reset()
        array = self._gateway.new_array(self.java.java.lang.String, len(arguments))
        for index, argument in enumerate(arguments):
            array[index] = argument
        failure, status = "", 0
        try:
            java_class = self.java
            for name in main_class.split("."):
                java_class = getattr(java_class, name)
            java_class.main(array)
        except Py4JJavaError as error:
            failure, status = str(error), 1
        if self._exit.status is not None:
            failure, status = "", self._exit.status
        err = self._err.toString("UTF-8").split(_OUR_OWN_EXCEPTION)[0]
        return ToolRun(status, self._out.toString("UTF-8"), err + failure)

    def __enter__(self) -> "SharedJvm":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._gateway.shutdown()
        except Py4JError:
            self._gateway.close()
        self._process.communicate()
