"""A small wave function and dense Hamiltonians: independent of the ansatz and Hamiltonian rooms."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from nnqs_lightning.ansatz.base import Ansatz
from nnqs_lightning.fock import SampleBatch, Sector, unpack
from nnqs_lightning.vmc.base import LocalEnergies

GEOMETRIES = {
    "h2": "H 0 0 0; H 0 0 0.7414",
    "lih": "Li 0 0 0; H 0 0 1.5949",
    "h4": "H 0 0 0; H 0 0 1; H 0 0 2; H 0 0 3",
}


class ToyAnsatz(Ansatz):
    """Unnormalised log ψ: an MLP for the amplitude and one for the phase, or one for both (``shared``)."""

    def __init__(self, sector: Sector, width: int = 6, shared: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.sector = sector
        self.shared = shared
        bits = 2 * sector.n_orb
        outputs = 2 if shared else 1
        self.amplitude = nn.Sequential(
            nn.Linear(bits, width), nn.Tanh(), nn.LayerNorm(width), nn.Linear(width, outputs)
        )
        self.phase_net = None if shared else nn.Sequential(nn.Linear(bits, width), nn.Tanh(), nn.Linear(width, 1))
        self.double()

    def log_psi(self, determinants: Tensor) -> Tensor:
        bits = unpack(determinants, self.sector.n_orb).flatten(1).to(self.amplitude[0].weight.dtype) * 2 - 1
        amplitude = self.amplitude(bits)
        phase = amplitude[:, 1] if self.phase_net is None else self.phase_net(bits)[:, 0]
        return torch.complex(amplitude[:, 0].double(), phase.double())


@cache
def dense_hamiltonian(name: str) -> tuple[Sector, Tensor]:
    """PySCF's matrix in the order of ``Sector.determinants``, float64 [size, size], nuclear repulsion included."""
    import numpy as np
    from pyscf import ao2mo, fci, gto, scf

    molecule = gto.M(atom=GEOMETRIES[name], basis="sto-3g", verbose=0)
    field = scf.RHF(molecule).run()
    n_orb, electrons = field.mo_coeff.shape[1], molecule.nelec
    h1e = field.mo_coeff.T @ field.get_hcore() @ field.mo_coeff
    eri = ao2mo.restore(1, ao2mo.kernel(molecule, field.mo_coeff), n_orb)
    absorbed = fci.direct_spin1.absorb_h1e(h1e, eri, n_orb, electrons, 0.5)
    strings = [fci.cistring.make_strings(range(n_orb), count) for count in electrons]
    size = len(strings[0]) * len(strings[1])
    columns = [
        fci.direct_spin1.contract_2e(absorbed, unit.reshape(len(strings[0]), -1), n_orb, electrons).ravel()
        for unit in np.eye(size)
    ]
    sector = Sector(n_orb, *electrons)
    words = sector.determinants()[:, :, 0].numpy()
    order = np.searchsorted(strings[0], words[:, 0]) * len(strings[1]) + np.searchsorted(strings[1], words[:, 1])
    matrix = np.stack(columns)[np.ix_(order, order)] + molecule.energy_nuc() * np.eye(size)
    return sector, torch.from_numpy(matrix)


def full_sample(ansatz: Ansatz, n: int | None = None) -> SampleBatch:
    """The whole sector (or its first ``n`` determinants), weighted by |ψ|² renormalised over the set."""
    determinants = ansatz.sector.determinants()[:n]
    with torch.no_grad():
        log_psi = ansatz.log_psi(determinants)
    return SampleBatch(determinants, log_psi, torch.softmax(2 * log_psi.real, 0))


def subspace_energies(matrix: Tensor, sample: SampleBatch) -> LocalEnergies:
    """(Hψ)/ψ within the sample, ``matrix`` being H in the same determinants."""
    psi = torch.exp(sample.log_psi - sample.log_psi.real.max())
    return LocalEnergies(
        (matrix.to(psi.dtype) @ psi) / psi, sample.weights, variational=True, diagonal=matrix.diagonal().clone()
    )


def dense_scores(ansatz: Ansatz, determinants: Tensor) -> Tensor:
    """∂ log |ψ_i| / ∂θ_j and ∂φ_i / ∂θ_j, stacked [2, N, P], one sample at a time by ``vmap(grad)``."""
    state = {name: p.detach() for name, p in ansatz.named_parameters()}

    def component(part: int) -> Tensor:
        def value(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
            log_psi = functional_call(ansatz, parameters, (row[None],))[0]
            return log_psi.imag if part else log_psi.real

        by_name = vmap(grad(value), in_dims=(None, 0))(state, determinants)
        return torch.cat([by_name[name].reshape(len(determinants), -1) for name in state], dim=1)

    return torch.stack([component(0), component(1)])
