"""Rank script: runs of the toy, each a word ``layout``, ``save:layout`` or ``source.ckpt:layout``."""

from __future__ import annotations

import sys

from lightning.pytorch.strategies import DDPStrategy
from ranks import report
from toy import STEPS, TIMEOUT, deepspeed, fit

LAYOUTS = ("ddp", "0", "1", "2", "3")


def strategy_of(layout: str) -> object:
    return DDPStrategy(timeout=TIMEOUT) if layout == "ddp" else deepspeed(int(layout))


if __name__ == "__main__":
    folder, *runs = sys.argv[1:]
    results = {}
    for run in runs:
        source, _, layout = run.rpartition(":")
        if source == "save":
            module, trainer = fit(strategy_of(layout), folder, max_steps=STEPS // 2)
            trainer.save_checkpoint(f"{folder}/{layout}.ckpt")
        else:
            module, _ = fit(strategy_of(layout), folder, ckpt_path=source or None)
        results[run] = module.losses
    report(folder, results)
