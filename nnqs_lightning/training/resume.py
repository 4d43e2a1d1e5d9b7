"""What ``--ckpt_path`` means: which checkpoint a run continues from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from nnqs_lightning.errors import UserError
from nnqs_lightning.training.checkpoint_store import (
    MANIFEST,
    STATE,
    CheckpointStore,
    DamagedCheckpoint,
    Manifest,
    verify,
)


def resolve_ckpt_path(run_dir: str | Path, request: str | None) -> str | None:
    """The state that a fit continues from.

    Args:
        run_dir: the run folder, ``trainer.default_root_dir``.
        request: ``auto`` (the newest if there is one), ``last``, ``best``, a path to a checkpoint, to its state file or
            to another run's folder, or None for a new run.

    Returns:
        A path for ``Trainer.fit``, None to start from the beginning.

    Raises:
        UserError: if the run folder holds another run's checkpoints (None), holds nothing to continue from (``last``,
            ``best``), holds damaged ones only, or the path is not a whole checkpoint.
    """
    store = CheckpointStore(run_dir)
    if request is None:
        _refuse_occupied(store)
        return None
    if request in ("auto", "last"):
        return _newest_whole(store, required=request == "last")
    if request == "best":
        best = _first_whole([*store.best(), *_by_energy(store)])
        if best is None:
            raise _nothing_found(store, request)
        return best
    return _from_path(Path(request))


def _refuse_occupied(store: CheckpointStore) -> None:
    entries = store.newest_first()
    if entries and entries[0][1].step > 0:
        raise UserError(
            f"{store.folder.parent} holds a run that has reached step {entries[0][1].step}: continue it with "
            "--ckpt_path auto, or start a new one in another folder with --trainer.default_root_dir"
        )


def _newest_whole(store: CheckpointStore, required: bool) -> str | None:
    for problem in store.damaged():
        rank_zero_warn(f"{problem}: not used")
    found = _first_whole([*store.newest_first(), *store.best()])
    if found is None and (required or store.newest_first() or store.damaged()):
        raise _nothing_found(store, "last")
    return found


def _first_whole(entries: Iterable[tuple[Path, Manifest]]) -> str | None:
    for path, _ in entries:
        try:
            verify(path)
        except DamagedCheckpoint as error:
            rank_zero_warn(f"{error}: falling back to the checkpoint before it")
        else:
            return str(path / STATE)
    return None


def _by_energy(store: CheckpointStore) -> list[tuple[Path, Manifest]]:
    measured = [entry for entry in store.newest_first() if entry[1].energy is not None]
    return sorted(measured, key=lambda entry: entry[1].energy or 0.0)


def _nothing_found(store: CheckpointStore, request: str) -> UserError:
    damaged = len(store.newest_first()) + len(store.damaged())
    found = f"only damaged checkpoints ({damaged})" if damaged else "no checkpoint"
    return UserError(
        f"--ckpt_path {request} found {found} in {store.folder}: name the run's folder with "
        "--trainer.default_root_dir, pass the path of a checkpoint, or start anew in an empty folder with auto"
    )


def _from_path(path: Path) -> str | None:
    checkpoint = path.parent if path.name == STATE else path
    if (checkpoint / MANIFEST).exists() or checkpoint.name.startswith("step-"):
        verify(checkpoint)
        return str(checkpoint / STATE)
    if (path / "checkpoints").is_dir():
        return _newest_whole(CheckpointStore(path), required=True)
    if not path.exists():
        raise UserError(f"--ckpt_path {path} does not exist: expected last, best, auto or a checkpoint")
    return str(path)
