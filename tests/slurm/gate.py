"""A callback that holds every rank at one step until a fault has been arranged: faults then need no timing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from nnqs_lightning import signals


class Gate(Callback):
    """Before step ``step``: leaves the process id in the run folder, waits for the file ``open`` there or for a signal.

    Args:
        step: Where to wait; a run that was started again further on does not.
        seconds: Time of every step, so that a signal finds a run at work.
    """

    def __init__(self, step: int, seconds: float = 0.0) -> None:
        self.step, self.seconds = step, seconds

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        time.sleep(self.seconds)
        if trainer.global_step != self.step:
            return
        folder = Path(trainer.default_root_dir)
        (folder / f"rank-{trainer.global_rank}-waits").write_text(str(os.getpid()))
        while not (folder / "open").exists() and not signals.requested():
            time.sleep(0.05)
