"""``python -m nnqs_lightning`` and the console script ``nnqs-lightning``."""

import sys

from nnqs_lightning import signals


def main() -> None:
    """Take the stop signals before the seconds of heavy imports, then hand over to the command line."""
    signals.install()
    if sys.argv[1:2] == ["submit"]:  # for login nodes: without the heavy imports
        from nnqs_lightning.training.submit import main as submit

        submit(sys.argv[2:])
        return
    if sys.argv[1:2] == ["consolidate"]:
        from nnqs_lightning.training.consolidate import main as consolidate

        consolidate(sys.argv[2:])
        return
    from nnqs_lightning.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
