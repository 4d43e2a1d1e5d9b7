"""metrics.csv and TensorBoard events that a resumed run continues: no row twice, none missing."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities.rank_zero import rank_zero_only, rank_zero_warn
from tensorboard.compat.proto.event_pb2 import Event, SessionLog


class RunCSVLogger(CSVLogger):
    """``metrics.csv`` in the run folder; an existing file is continued, and rows wait in memory while the disk is full.

    Args:
        run_dir: the run folder.
        flush_every: steps between two writes to the file; every checkpoint flushes too.
    """

    def __init__(self, run_dir: str | Path, flush_every: int = 10) -> None:
        super().__init__(run_dir, name="", version="", flush_logs_every_n_steps=flush_every)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _ContinuedWriter(log_dir=self.log_dir)
        return self._experiment

    @rank_zero_only
    def save(self) -> None:
        try:
            super().save()
        except OSError as error:
            rank_zero_warn(f"{self.experiment.metrics_file_path} was not written ({error}): its rows wait in memory")

    @rank_zero_only
    def drop_from(self, step: int) -> None:
        """Remove the rows of ``step`` and after, and torn ones."""
        path = Path(self.experiment.metrics_file_path)
        if path.exists():
            names, rows = _read(path)
            _write(path, names, [row for row in rows if _is_before(row, step)])


class _ContinuedWriter(ExperimentWriter):
    """Lightning's own writer deletes the file of an earlier process, and tears it where the disk is full."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if path.exists():
            self.metrics_keys = _read(path)[0]

    def save(self) -> None:
        """Write the rows that wait, all or none.

        Raises:
            OSError: they could not be written, and wait on.
        """
        if not self.metrics:
            return
        path = Path(self.metrics_file_path)
        names = sorted({*self.metrics_keys, *(name for row in self.metrics for name in row)})
        if path.exists() and names == self.metrics_keys:
            _append(path, names, self.metrics)
        else:
            _write(path, names, [*(_read(path)[1] if path.exists() else []), *self.metrics])
        self.metrics_keys, self.metrics = names, []


class RunTensorBoardLogger(TensorBoardLogger):
    """TensorBoard events in the run folder: one run, whatever the number of restarts.

    Args:
        run_dir: the run folder.
    """

    def __init__(self, run_dir: str | Path) -> None:
        super().__init__(run_dir, name="", version="", default_hp_metric=False)

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        try:
            super().log_metrics(metrics, step)
        except OSError as error:
            rank_zero_warn(f"TensorBoard events could not be written ({error})")
            self._experiment = None

    @rank_zero_only
    def drop_from(self, step: int) -> None:
        """Tell TensorBoard to forget what was logged at ``step`` and after."""
        writer = self.experiment._get_file_writer()
        writer.add_event(Event(step=step, file_version="brain.Event:2"))
        writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))


def pending_row(trainer: Trainer) -> dict[str, float]:
    """The figures of the step that ends, which Lightning hands to the loggers only after every callback has run.

    They travel with a checkpoint of this step, or a kill between the two would lose the row. Empty if it is not logged.
    """
    if trainer.global_step == 0 or trainer.global_step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
        return {}
    figures = {name: float(value) for name, value in trainer.logged_metrics.items()}
    return {**figures, "epoch": trainer.current_epoch}


def continue_logs(loggers: Iterable[Logger], step: int, row: dict[str, float]) -> None:
    """Take the logs back to where ``step`` optimiser steps were done.

    Args:
        loggers: the trainer's.
        step: steps done by the checkpoint that the run continues from.
        row: :func:`pending_row` of that checkpoint.
    """
    for logger in loggers:
        if isinstance(logger, (RunCSVLogger, RunTensorBoardLogger)):
            # Lightning counts logged steps from zero: step k is logged as k − 1.
            logger.drop_from(step - 1 if row else step)
            if row:
                logger.log_metrics(dict(row), step - 1)


def flush_logs(loggers: Iterable[Logger]) -> None:
    """Have everything logged so far in the files, so that no row is older than a checkpoint and missing."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.flush()
        else:
            logger.save()


def _read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return list(reader.fieldnames or []), list(reader)


def _write(path: Path, names: list[str], rows: list[dict[str, Any]]) -> None:
    temporary = path.with_suffix(".writing")
    try:
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=names)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _append(path: Path, names: list[str], rows: list[dict[str, Any]]) -> None:
    length = path.stat().st_size
    try:
        with path.open("a", newline="") as file:
            csv.DictWriter(file, fieldnames=names).writerows(rows)
    except OSError:
        os.truncate(path, length)
        raise


def _is_before(row: dict[str, Any], step: int) -> bool:
    try:
        return None not in row and None not in row.values() and int(row["step"]) < step
    except (KeyError, ValueError):
        return False
