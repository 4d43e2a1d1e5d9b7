"""Rank script: ``fit`` from the command line at stages 1, 2 and 3, one after the other in folders of that name."""

from __future__ import annotations

import sys

from ranks import report

from nnqs_lightning.cli import main

if __name__ == "__main__":
    folder, *args = sys.argv[1:]
    for stage in (1, 2, 3):
        where = f"--trainer.default_root_dir={folder}/{stage}"
        main(["fit", *args, f"--trainer.strategy.init_args.stage={stage}", where])
    report(folder, None)
