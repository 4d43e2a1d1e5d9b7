"""The one-dimensional Hubbard model."""

from __future__ import annotations

import numpy as np

from nnqs_lightning.chem.cached import CachedSystem
from nnqs_lightning.chem.integrals import MolecularIntegrals
from nnqs_lightning.errors import UserError


class HubbardChain(CachedSystem):
    """H = −t Σ_<ij>σ (a†_iσ a_jσ + h.c.) + u Σ_i n_iα n_iβ on a chain of sites, energies in units of t's unit.

    Args:
        n_sites: number of sites; each is one spatial orbital.
        u: on-site repulsion.
        t: hopping between neighbours.
        n_alpha: number of α electrons; left out, half filling.
        n_beta: number of β electrons; left out, half filling.
        periodic: whether the last site is joined to the first.
        max_fci_determinants: the FCI energy is computed up to this number of determinants.

    Raises:
        UserError: no sites, electron numbers that do not fit, or a ring of fewer than three sites.
    """

    def __init__(
        self,
        n_sites: int,
        u: float = 4.0,
        t: float = 1.0,
        n_alpha: int | None = None,
        n_beta: int | None = None,
        periodic: bool = False,
        max_fci_determinants: int = 2_000_000,
    ) -> None:
        super().__init__(max_fci_determinants, wfn_sym=None)
        if n_sites < 1 or (periodic and n_sites < 3):
            least = 3 if periodic else 1
            raise UserError(f"model.system.n_sites is {n_sites}: expected {least} or more")
        self.n_sites = n_sites
        self.u = u
        self.t = t
        self.n_alpha = (n_sites + 1) // 2 if n_alpha is None else n_alpha
        self.n_beta = n_sites // 2 if n_beta is None else n_beta
        self.periodic = periodic
        if not 0 <= self.n_beta <= self.n_alpha <= n_sites or self.n_alpha == 0:
            raise UserError(
                f"{self.n_alpha} α and {self.n_beta} β electrons on {n_sites} sites: expected n_sites ≥ n_alpha ≥ "
                "n_beta, change model.system.n_alpha and model.system.n_beta"
            )
        self.name = f"hubbard_{'ring' if periodic else 'chain'}_{n_sites}_u{u:g}"

    def _make_integrals(self) -> MolecularIntegrals:
        site = np.arange(self.n_sites)
        h1e = np.zeros((self.n_sites, self.n_sites))
        h1e[site[:-1], site[1:]] = h1e[site[1:], site[:-1]] = -self.t
        if self.periodic:
            h1e[0, -1] = h1e[-1, 0] = -self.t
        eri = np.zeros((self.n_sites,) * 4)
        eri[site, site, site, site] = self.u
        return MolecularIntegrals(h1e=h1e, eri=eri, e_core=0.0, n_alpha=self.n_alpha, n_beta=self.n_beta)
