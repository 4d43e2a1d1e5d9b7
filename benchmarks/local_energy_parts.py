"""Parts of the local-energy engine with and without what is to make them fast, and libraries in their place."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from local_energy_measure import cpu_seconds, peak_megabytes
from local_energy_sets import DATA, integrals, named_set, strongest
from numpy.typing import NDArray
from torch import Tensor

from nnqs_lightning.fock.compiled import map_rows
from nnqs_lightning.fock.lookup import DeterminantTable
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.hamiltonian.connected import connect_rows
from nnqs_lightning.hamiltonian.hash_search import hash_rows

Words = NDArray[np.uint64]


def screening_rows(quick: bool) -> list[dict[str, Any]]:
    """Connected states above a threshold: every one enumerated and compared, against sorted rows left early."""
    rows = []
    for name in ("N2 cc-pVDZ", "Fe2S2"):
        if not DATA.is_dir():
            print(f"left out {name}: no folder {DATA}")
            continue
        hamiltonian = MolecularHamiltonian(integrals(name))
        determinants = strongest(hamiltonian, 300 if quick else 1_000)
        for threshold in (1e-4, 1e-3, 1e-2):
            jobs: dict[str, Callable[[], Any]] = {
                "enumerate, compare": lambda h=hamiltonian, d=determinants, t=threshold: enumerated(h, d, t),
                "sorted, stop early": lambda h=hamiltonian, d=determinants, t=threshold: h.connected_states(d, t),
                "… and 16 draws": lambda h=hamiltonian, d=determinants, t=threshold: h.drawn_states(d, t, 16, 0),
            }
            seconds = {job: cpu_seconds(run, 2 if quick else 5) for job, run in jobs.items()}
            kept = len(hamiltonian.connected_states(determinants, threshold).elements) / len(determinants)
            figures = {f"{job}, µs": round(1e6 * t / len(determinants), 1) for job, t in seconds.items()}
            before, after, _ = seconds.values()
            rows.append(
                {
                    "system": name,
                    "threshold": threshold,
                    "connected": hamiltonian.n_connected,
                    "kept": round(kept),
                    **figures,
                    "ratio": round(before / after, 2),
                    "peak MB": peak_megabytes(jobs["sorted, stop early"]),
                }
            )
    return rows


def enumerated(hamiltonian: MolecularHamiltonian, determinants: Tensor, threshold: float) -> tuple[Words, Any]:
    """States and elements above a threshold by plain enumeration."""
    words = hamiltonian.words(determinants)
    width = hamiltonian.n_connected
    states = np.empty((len(words) * width, *words.shape[1:]), dtype=np.uint64)
    elements, counts = np.empty(len(states)), np.empty(len(words), dtype=np.int64)
    ((_, end),) = map_rows(
        connect_rows, len(words), words, hamiltonian.tables, threshold, width, states, elements, counts
    )
    return states[:end], elements[:end]


def filter_rows(sets: dict[str, int], quick: bool) -> list[dict[str, Any]]:
    """The hash search with its bitmap, and with one that lets everything through."""
    rows = []
    for name, size in sets.items():
        hamiltonian, determinants, log_psi = named_set(name, size, quick)
        some = np.arange(0, len(determinants), max(1, len(determinants) // 300))
        subspace = hamiltonian.subspace(determinants, some)
        psi = np.ascontiguousarray(torch.view_as_real(log_psi.exp()).numpy())
        sums = np.empty((len(some), 2))
        held = subspace.members
        seconds = []
        for searched in (held._replace(bits=np.full(1, ~np.uint64(0))), held):
            arguments = (len(some), some, searched, subspace.tables, subspace.n_connected, psi, sums)
            seconds.append(cpu_seconds(lambda a=arguments: map_rows(hash_rows, *a), 3))
        without, filtered = seconds
        elements = len(some) * hamiltonian.n_connected / 1e6
        rows.append(
            {
                "system": name,
                "set": len(determinants),
                "bitmap, kB": held.bits.nbytes // 1024,
                "table, kB": (held.slots.nbytes + held.words.nbytes) // 1024,
                "without, M elements/s": round(elements / without, 1),
                "with, M elements/s": round(elements / filtered, 1),
                "ratio": round(without / filtered, 2),
            }
        )
    return rows


def lookup_rows(quick: bool) -> list[dict[str, Any]]:
    """Positions of determinants in a set of 1e5 and 1e6: ours against the libraries that are installed."""
    rows = []
    for size in (100_000,) if quick else (100_000, 1_000_000):
        rng = np.random.default_rng(0)
        held = np.unique(rng.integers(1 << 52, size=(size, 2), dtype=np.uint64), axis=0)
        rng.shuffle(held)
        for share in (0.01, 1.0):
            queries = rng.integers(1 << 52, size=(100_000 if quick else 1_000_000, 2), dtype=np.uint64)
            members = rng.random(len(queries)) < share
            queries[members] = held[rng.integers(len(held), size=members.sum())]
            expected = None
            for library, prepare in lookups():
                find = prepare(held)
                found = find(queries)
                expected = found if expected is None else expected
                assert np.array_equal(found, expected), library
                seconds = cpu_seconds(lambda f=find, q=queries: f(q), 1 if quick else 3)
                rows.append(
                    {
                        "library": library,
                        "set": len(held),
                        "of the queries found": share,
                        "M look-ups/s": round(len(queries) / seconds / 1e6, 1),
                    }
                )
    return rows


Find = Callable[[Words], NDArray[np.int64]]


def lookups() -> Iterator[tuple[str, Callable[[Words], Find]]]:
    """Ways to look up pairs of words, each a function of the set that returns one of the queries."""
    yield "ours (open addressing, numba)", our_table
    yield "numba.typed.Dict", typed_dict
    yield "numpy.searchsorted", sorted_keys
    yield "dict", python_dict
    for module, prepare in (("pandas", pandas_index), ("pyarrow", arrow_index), ("hirola", hirola_table)):
        if importlib.util.find_spec(module):
            yield module, prepare
        else:
            print(f"left out {module}: not installed")


def our_table(held: Words) -> Find:
    """The package's hash table."""
    table = DeterminantTable(torch.from_numpy(held.view(np.int64)))
    return lambda queries: table.find(torch.from_numpy(queries.view(np.int64))).numpy()


def typed_dict(held: Words) -> Find:
    """numba's dictionary, of pairs of words."""
    import numba

    key = numba.types.UniTuple(numba.types.uint64, 2)
    positions = numba.typed.Dict.empty(key, numba.types.int64)

    @numba.njit
    def fill(rows, positions):  # type: ignore[no-untyped-def]
        for n in range(rows.shape[0]):
            positions[(rows[n, 0], rows[n, 1])] = n

    @numba.njit
    def find(rows, positions):  # type: ignore[no-untyped-def]
        result = np.empty(rows.shape[0], dtype=np.int64)
        for n in range(rows.shape[0]):
            result[n] = positions.get((rows[n, 0], rows[n, 1]), -1)
        return result

    fill(held, positions)
    return lambda queries: find(queries, positions)


def sorted_keys(held: Words) -> Find:
    """Binary search; pairs are compared as complex numbers, which numpy orders by real, then imaginary part."""
    keys = held.astype(np.float64).view(np.complex128)[:, 0]
    order = np.argsort(keys)
    ordered = keys[order]

    def find(queries: Words) -> NDArray[np.int64]:
        wanted = queries.astype(np.float64).view(np.complex128)[:, 0]
        place = np.searchsorted(ordered, wanted).clip(max=len(ordered) - 1)
        return np.where(ordered[place] == wanted, order[place], -1)

    return find


def python_dict(held: Words) -> Find:
    """A dictionary of bytes."""
    positions = {row: n for n, row in enumerate(as_bytes(held))}
    return lambda queries: np.array([positions.get(row, -1) for row in as_bytes(queries)])


def as_bytes(rows: Words) -> list[bytes]:
    """Each row as bytes, zeros at their end dropped."""
    return np.ascontiguousarray(rows).view("S16")[:, 0].tolist()


def pandas_index(held: Words) -> Find:
    """A MultiIndex of both words."""
    import pandas

    index = pandas.MultiIndex.from_arrays([held[:, 0], held[:, 1]])
    return lambda queries: index.get_indexer(pandas.MultiIndex.from_arrays([queries[:, 0], queries[:, 1]]))


def arrow_index(held: Words) -> Find:
    """``index_in`` of 16-byte values."""
    import pyarrow
    import pyarrow.compute

    def column(rows: Words) -> Any:
        data = pyarrow.py_buffer(np.ascontiguousarray(rows))
        return pyarrow.Array.from_buffers(pyarrow.binary(16), len(rows), [None, data])

    keys = column(held)
    return lambda queries: pyarrow.compute.index_in(column(queries), keys).fill_null(-1).to_numpy().astype(np.int64)


def hirola_table(held: Words) -> Find:
    """A hash table for numpy rows, written in C."""
    import hirola

    table = hirola.HashTable(2 * len(held), dtype=(np.uint64, 2))
    table.add(held)
    return lambda queries: table.get(queries)
