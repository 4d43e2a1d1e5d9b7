"""The one exception whose message is meant for the user, and how the command line tells it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TRACEBACK_VARIABLE = "NNQS_TRACEBACK"
"""Set to 1 to see the traceback behind a one-line error."""

REFUSAL_VARIABLE = "NNQS_REFUSAL_MARKER"
"""Names the file that tells a batch script not to start a refused run again."""


class UserError(ValueError):
    """Bad input. The message says what was passed, what was expected and which config key to change.

    The command line prints it on one line, without a traceback, and exits with status 2.
    """


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line and status 2 on a :class:`UserError`."""
    try:
        yield
    except UserError as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        message = " ".join(str(error).split())
        print(f"error: {message} (set {TRACEBACK_VARIABLE}=1 for the traceback)", file=sys.stderr)
        if os.environ.get(REFUSAL_VARIABLE):
            with suppress(OSError):  # the message is out; the exit code says the same less surely
                Path(os.environ[REFUSAL_VARIABLE]).write_text(f"{message}\n", encoding="utf-8")
        sys.exit(2)
