"""The `barnabas` command: `serve` starts without an import of the libraries that only the other commands need."""

import _signal  # type: ignore[import-not-found]  # what `signal` is made of: that imports enum first
import gc
import sys

TYPE_CHECKING = False  # nothing more may be imported before `main` has seen to Ctrl-C
if TYPE_CHECKING:
    from barnabas.broker.environment import Environment


def main(arguments: list[str] | None = None, environment: "Environment | None" = None) -> None:
    """Run one command and exit with its status. `environment` is what a broker takes from outside of itself, by default
    the machine's own.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        # Where nobody waits for it, Ctrl-C ends the process without a traceback of half an import, say. The broker and
        # the commands that talk to one handle it themselves.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _open_what_is_closed()
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"] and not {"-h", "--help"} & set(arguments):
        gc.disable()  # until it has started, see `barnabas.broker.cli.process.run`
        if any(argument.partition("=")[0] == "--control" for argument in arguments):
            from barnabas.testing.control.command import main as serve
        else:
            from barnabas.broker.cli.serve import main as serve

        sys.exit(serve(arguments[1:], environment=environment))
    from barnabas.broker.cli.app import main as run

    sys.exit(run(arguments))


def _open_what_is_closed() -> None:
    """Have standard input be empty, and standard output and error take anything, where they are closed (`>&-`): else
    the first file or connection would have that descriptor, and be written to as if it were the screen.
    """
    import os

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives


if __name__ == "__main__":
    main()
