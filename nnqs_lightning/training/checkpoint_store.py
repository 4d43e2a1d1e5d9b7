"""Checkpoints on disk: each one is a folder that is either whole and proves it, or not taken for a checkpoint.

    checkpoints/
      step-00000120/            published by one rename
        state.ckpt              a file, or a folder of shards where DeepSpeed wrote it
        config.yaml             the run's configuration
        manifest.json           what is here: sizes, SHA-256, step, energy, versions
      best/step-00000080/       the lowest energy so far, out of reach of the rotation

Nothing here imports torch: a login node reads manifests too.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nnqs_lightning.errors import UserError

FORMAT = 1
"""Version of this layout; every version from 1 on stays readable."""

STATE = "state.ckpt"
MANIFEST = "manifest.json"
_WRITING, _REMOVING = ".writing-", ".removing-"


class DamagedCheckpoint(UserError):
    """The folder is not a whole checkpoint; the message says what is wrong with it."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says about itself."""

    step: int
    """Optimiser steps done."""
    serial: int
    """Place in the order of saving: greater is newer, also where a run went back to an earlier step."""
    energy: float | None
    """Energy at this step in hartree, None before the first one."""
    reason: str
    save_seconds: float
    """Time to write the state."""
    step_seconds: float
    """Longest step since the save before."""
    world_size: int
    strategy: str
    versions: dict[str, str]
    saved_at: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Relative path → ``size`` in bytes and ``sha256``."""
    format: int = FORMAT

    @classmethod
    def read(cls, checkpoint: Path) -> Manifest:
        """Parse ``checkpoint``'s manifest.

        Raises:
            DamagedCheckpoint: if there is none, or it is torn.
            UserError: if a newer version of this package wrote it.
        """
        try:
            fields = json.loads((checkpoint / MANIFEST).read_bytes())
            checksum, written_format = fields.pop("checksum"), int(fields["format"])
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{checkpoint} has no {MANIFEST}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCheckpoint(f"{checkpoint / MANIFEST} is unreadable ({error})") from None
        if checksum != _checksum(fields):
            raise DamagedCheckpoint(f"{checkpoint / MANIFEST} is not what was written: its checksum differs")
        if written_format > FORMAT:
            raise UserError(
                f"{checkpoint} has checkpoint format {written_format}, this version reads up to {FORMAT}: "
                "upgrade nnqs_lightning"
            )
        return cls(**fields)

    def write(self, checkpoint: Path) -> None:
        """Write ``checkpoint``'s manifest, with a checksum of its own."""
        fields = asdict(self)
        content = json.dumps({**fields, "checksum": _checksum(fields)}, indent=1)
        (checkpoint / MANIFEST).write_text(content + "\n", encoding="utf-8")


class CheckpointStore:
    """The checkpoints of one run folder.

    Args:
        run_dir: the run folder; nothing is created or removed before the first save.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.folder = Path(run_dir) / "checkpoints"

    def newest_first(self) -> list[tuple[Path, Manifest]]:
        """Every checkpoint with a readable manifest."""
        return sorted(_readable(self.folder), key=lambda entry: -entry[1].serial)

    def best(self) -> list[tuple[Path, Manifest]]:
        """The copies kept for their energy, lowest first."""
        kept = [entry for entry in _readable(self.folder / "best") if entry[1].energy is not None]
        return sorted(kept, key=lambda entry: entry[1].energy or 0.0)

    def damaged(self) -> list[str]:
        """One message for each published folder without a readable manifest."""
        messages = []
        for path in _published(self.folder):
            try:
                Manifest.read(path)
            except DamagedCheckpoint as error:
                messages.append(str(error))
        return messages

    def begin(self, step: int) -> Path:
        """An empty folder to write a checkpoint into; what an earlier process left half-written is cleared away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in [*self.folder.glob(f"{_WRITING}*"), *self.folder.glob(f"{_REMOVING}*")]:
            shutil.rmtree(leftover, ignore_errors=True)
        self._require_space()
        writing = self._writing(step)
        writing.mkdir()
        return writing

    def _require_space(self) -> None:
        """Refuse early: ranks that write shards together hang where one of them fails."""
        for _, manifest in self.newest_first()[:1]:
            needed = sum(record["size"] for record in manifest.files.values())
            free = shutil.disk_usage(self.folder).free
            if free < needed:
                raise OSError(errno.ENOSPC, f"{free:,} bytes free, {needed:,} needed", str(self.folder))

    def publish(self, writing: Path, **figures: Any) -> Path:
        """Seal what was written into ``writing`` with a manifest and rename it to its own name, all or nothing.

        Args:
            writing: the folder of :meth:`begin`, filled.
            **figures: the fields of :class:`Manifest` but ``serial`` and ``files``.
        """
        files = {
            str(path.relative_to(writing)): {"size": path.stat().st_size, "sha256": _sha256(path)}
            for path in _files(writing)
        }
        serial = 1 + max((manifest.serial for _, manifest in self.newest_first()), default=0)
        manifest = Manifest(serial=serial, files=files, **figures)
        manifest.write(writing)
        for path in [*_files(writing), *(p for p in writing.rglob("*") if p.is_dir()), writing]:
            _sync(path)
        target = _free_name(self.folder / f"step-{manifest.step:08d}")
        writing.rename(target)
        _sync(self.folder)
        return target

    def discard(self, step: int) -> None:
        """Remove what could not be filled of :meth:`begin`'s folder: on a full disk it is in the way."""
        shutil.rmtree(self._writing(step), ignore_errors=True)

    def _writing(self, step: int) -> Path:
        return self.folder / f"{_WRITING}{step:08d}"

    def keep_if_best(self, checkpoint: Path) -> None:
        """Keep a copy apart if its energy is the lowest so far; hard links, where the file system has them."""
        manifest = Manifest.read(checkpoint)
        before = self.best()
        lowest = before[0][1].energy if before else None
        if manifest.energy is None or (lowest is not None and manifest.energy >= lowest):
            return
        kept = self.folder / "best"
        kept.mkdir(exist_ok=True)
        writing = self.folder / f"{_WRITING}best"
        shutil.rmtree(writing, ignore_errors=True)
        shutil.copytree(checkpoint, writing, copy_function=_link_or_copy)
        writing.rename(_free_name(kept / checkpoint.name))
        for path, _ in before:
            self._remove(path)

    def prune(self, keep: int) -> None:
        """Remove all but the ``keep`` newest checkpoints whose files have the sizes they should have."""
        whole = [path for path, manifest in self.newest_first() if _wrong_size(path, manifest) is None]
        for path in whole[keep:]:
            self._remove(path)

    def _remove(self, checkpoint: Path) -> None:
        """Renamed first: a folder half-removed is never taken for a checkpoint."""
        removing = _free_name(self.folder / f"{_REMOVING}{checkpoint.name}")
        checkpoint.rename(removing)
        shutil.rmtree(removing, ignore_errors=True)


def verify(checkpoint: Path) -> Manifest:
    """Read every byte of a checkpoint and compare it with the manifest.

    Raises:
        DamagedCheckpoint: if a file is missing, has another size or another content.
    """
    manifest = Manifest.read(checkpoint)
    problem = _wrong_size(checkpoint, manifest)
    if problem:
        raise DamagedCheckpoint(problem)
    for name, record in manifest.files.items():
        if _sha256(checkpoint / name) != record["sha256"]:
            raise DamagedCheckpoint(f"{checkpoint / name} is not what was written: its checksum differs")
    return manifest


def _wrong_size(checkpoint: Path, manifest: Manifest) -> str | None:
    for name, record in manifest.files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != record["size"]:
            return f"{path} has {path.stat().st_size:,} bytes, {record['size']:,} were written"
    return None


def _published(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("step-*")) if path.is_dir())


def _readable(folder: Path) -> Iterator[tuple[Path, Manifest]]:
    for path in _published(folder):
        try:
            yield path, Manifest.read(path)
        except DamagedCheckpoint:
            continue


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _free_name(path: Path) -> Path:
    """``path``, or ``path-v2``, ``path-v3``, … if it is taken."""
    candidate, version = path, 1
    while candidate.exists():
        version += 1
        candidate = path.with_name(f"{path.name}-v{version}")
    return candidate


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    """Have the kernel write ``path``, a file or a folder, so that the rename never outlives the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
