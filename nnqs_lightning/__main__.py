"""``python -m nnqs_lightning`` and the console script ``nnqs-lightning``."""

import sys
from importlib import import_module

from nnqs_lightning import signals
from nnqs_lightning.errors import one_line_errors

COMMANDS = {
    "submit": "nnqs_lightning.training.submit",
    "consolidate": "nnqs_lightning.training.consolidate",
    "study": "nnqs_lightning.study.command",
}
"""Where the ``main`` of each command beside Lightning's own lives; ``submit`` runs on login nodes, so it is light."""

TRAINING = {"fit", "study"}
"""Commands that stop at the end of a step; a signal ends the others at once."""


def main() -> None:
    """Take the stop signals before the seconds of heavy imports, then hand over to the command."""
    signals.install()
    if not TRAINING.intersection(sys.argv[1:]):
        signals.release()
    with one_line_errors():
        if sys.argv[1:2] and sys.argv[1] in COMMANDS:
            import_module(COMMANDS[sys.argv[1]]).main(sys.argv[2:])
        else:
            import_module("nnqs_lightning.cli").main(sys.argv[1:])


if __name__ == "__main__":
    main()
