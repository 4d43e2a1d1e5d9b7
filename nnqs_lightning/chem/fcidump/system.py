"""Integrals from an FCIDUMP file as a system."""

from __future__ import annotations

import os
from pathlib import Path

from nnqs_lightning.chem.active_space import ActiveSpace, partition, reduce_integrals
from nnqs_lightning.chem.cached import CachedSystem
from nnqs_lightning.chem.fcidump.reader import read_fcidump
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError


class Fcidump(CachedSystem):
    """Integrals from an FCIDUMP file, plain or gzip.

    Args:
        path: the file.
        n_electrons: number of electrons, instead of the file's NELEC.
        spin: 2S, instead of the file's MS2.
        e_core: core energy in hartree for a file without such a row; refused for a file with one.
        frozen_core: number of orbitals, the first of the file, to keep doubly occupied.
        active_space: active electrons and orbitals, instead of a frozen core.
        wfn_sym: irrep of the target state, 1 … 8. Left out, the target has the file's ISYM, or where that is 1 the
            irrep of the determinant of the lowest orbitals, and the FCI energy is that of the lowest state of all.
        max_fci_determinants: the FCI energy is computed up to this number of determinants.

    Raises:
        UserError: there is no such file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n_electrons: int | None = None,
        spin: int | None = None,
        e_core: float | None = None,
        frozen_core: int = 0,
        active_space: ActiveSpace | None = None,
        wfn_sym: int | None = None,
        max_fci_determinants: int = 2_000_000,
    ) -> None:
        super().__init__(max_fci_determinants, wfn_sym)
        self.path = Path(path)
        if not self.path.is_file():
            raise UserError(f"no file '{self.path}': expected an FCIDUMP file, change model.system.path")
        self.name = self.path.name.removesuffix(".gz").removesuffix(".FCIDUMP").removesuffix(".fcidump")
        self.n_electrons = n_electrons
        self.spin = spin
        self.e_core = e_core
        self.frozen_core = frozen_core
        self.active_space = active_space

    def _make_integrals(self) -> MolecularIntegrals:
        # Reading is quick and always gives the same numbers: nothing to gain from the disk cache.
        whole = read_fcidump(self.path, self.n_electrons, self.spin, self.e_core)
        core, active = partition(whole.n_orb, whole.n_alpha, whole.n_beta, self.frozen_core, self.active_space)
        return reduce_integrals(whole, core, active)
