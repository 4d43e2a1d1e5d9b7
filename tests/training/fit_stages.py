"""Rank script: the toy under DDP and every ZeRO stage, whole and in pieces."""

from __future__ import annotations

import sys

from lightning.pytorch.strategies import DDPStrategy
from ranks import report
from toy import TIMEOUT, deepspeed, fit

if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    results = {}
    for name in names or ("ddp", 0, 1, 2, 3):
        for max_rows in (None, 4):
            strategy = DDPStrategy(timeout=TIMEOUT) if name == "ddp" else deepspeed(int(name))
            module, _ = fit(strategy, folder, max_rows)
            results[name, max_rows] = (module.losses, module.gradients)
            print(name, max_rows, module.losses[-1], flush=True)
    report(folder, results)
