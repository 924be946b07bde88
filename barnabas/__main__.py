"""The `barnabas` command: `serve` starts without the libraries that the other commands are made with."""

import gc
import signal
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"]:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the broker handles it: no traceback of half an import
        gc.disable()  # until it has started, see `barnabas.broker.server.run`
        from barnabas.broker.cli.serve import main as serve

        sys.exit(serve(arguments[1:]))
    from barnabas.broker.cli.app import main as run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
