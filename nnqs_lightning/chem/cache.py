"""A folder of results under a key of their inputs, shared by concurrent processes."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nnqs_lightning.chem.integrals import MolecularIntegrals

log = logging.getLogger(__name__)

FORMAT_VERSION = 3
"""Part of every key: raise it when the meaning of a cached value changes."""

FEATURE_PREFIX = "feature_"
"""Of the names of orbital features among the arrays of an entry."""

CORRUPT = (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile)
"""What reading a damaged entry may raise."""

T = TypeVar("T")


def cache_dir() -> Path:
    """The folder of cached results: `$NNQS_CACHE`, else the platform's cache folder."""
    named = os.environ.get("NNQS_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "nnqs_lightning"
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "nnqs_lightning"


def cache_key(inputs: dict[str, Any]) -> str:
    """Hexadecimal key of JSON-like inputs, this module's format and the version of PySCF."""
    # The metadata tells the version without the seconds that importing PySCF takes.
    stamped = {**inputs, "format": FORMAT_VERSION, "pyscf": metadata.version("pyscf")}
    return hashlib.sha256(json.dumps(stamped, sort_keys=True).encode()).hexdigest()[:40]


def cached(
    filename: str, compute: Callable[[], T], dump: Callable[[T], bytes], load: Callable[[bytes], T], what: str
) -> T:
    """The entry ``filename`` of the cache, computed and written if it is missing or damaged.

    All processes get the same value, bit for bit: the first one to finish writes, the others read what it wrote. A
    folder that cannot be written costs a warning, not the run.

    Args:
        filename: name of the entry, made from :func:`cache_key`.
        compute: makes the value.
        dump: value to bytes.
        load: inverse of ``dump``; raises one of ``CORRUPT`` on damaged input.
        what: names the value in warnings.
    """
    path = cache_dir() / filename
    stored = _read(path, load, what)
    if stored is not None:
        return stored
    content = dump(compute())
    try:
        _publish(path, content)
    except OSError as error:
        log.warning("%s could not be cached in %s (%s)", what, path.parent, error)
    winner = _read(path, load, what)
    return load(content) if winner is None else winner


def _read(path: Path, load: Callable[[bytes], T], what: str) -> T | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        return load(content)
    except CORRUPT as error:
        log.warning("the cached %s in %s is damaged (%s) and is computed again", what, path, error)
        if path.exists() and path.read_bytes() == content:  # not yet replaced by another process
            path.unlink(missing_ok=True)
        return None


def _publish(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` in one step; an entry that another process wrote meanwhile stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = write_temporary(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_temporary(path: Path, content: bytes) -> Path:
    """Write ``content`` to a new file beside ``path``, flushed to disk, ready to be renamed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    Path(name).chmod(0o644)  # mkstemp's own 0600 would shut out others who share the folder
    return Path(name)


def dump_integrals(integrals: MolecularIntegrals) -> bytes:
    """Integrals as the bytes of an .npz file, (pq|rs) stored once for each set of equal entries."""
    p, q = np.tril_indices(integrals.n_orb)
    pairs = integrals.eri[p, q][:, p, q]
    arrays: dict[str, Any] = {
        "h1e": integrals.h1e,
        "eri": pairs[np.tril_indices(len(p))],
        "numbers": np.array([integrals.n_alpha, integrals.n_beta, integrals.wfn_sym]),
        "e_core": np.array(integrals.e_core),
        "point_group": np.array(integrals.point_group or ""),
    }
    for name in ("orbsym", "mo_energy", "mo_coeff"):
        value = getattr(integrals, name)
        if value is not None:
            arrays[name] = np.asarray(value)
    arrays.update({FEATURE_PREFIX + name: values for name, values in integrals.orbital_features.items()})
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def load_integrals(content: bytes) -> MolecularIntegrals:
    """Inverse of :func:`dump_integrals`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    n_orb = arrays["h1e"].shape[0]
    n_alpha, n_beta, wfn_sym = (int(number) for number in arrays["numbers"])
    p, q = np.tril_indices(n_orb)
    pairs = np.empty((len(p), len(p)))
    row, column = np.tril_indices(len(p))
    pairs[row, column] = pairs[column, row] = arrays["eri"]
    pair_of = np.empty((n_orb, n_orb), dtype=np.int64)
    pair_of[p, q] = pair_of[q, p] = np.arange(len(p))
    return MolecularIntegrals(
        h1e=arrays["h1e"],
        eri=pairs[pair_of[:, :, None, None], pair_of[None, None, :, :]],
        e_core=float(arrays["e_core"]),
        n_alpha=n_alpha,
        n_beta=n_beta,
        orbsym=tuple(int(label) for label in arrays["orbsym"]) if "orbsym" in arrays else None,
        mo_energy=arrays.get("mo_energy"),
        mo_coeff=arrays.get("mo_coeff"),
        point_group=str(arrays["point_group"]) or None,
        wfn_sym=wfn_sym,
        orbital_features={
            name.removeprefix(FEATURE_PREFIX): values
            for name, values in arrays.items()
            if name.startswith(FEATURE_PREFIX)
        },
    )
