"""Local energies within the sampled set, by a sparse Hamiltonian that is kept from step to step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from nnqs_lightning.errors import UserError
from nnqs_lightning.hamiltonian import MolecularHamiltonian, Strategy
from nnqs_lightning.vmc.local_energy.subspace import SubspaceLocalEnergy, SubspaceWeights

if TYPE_CHECKING:
    from nnqs_lightning.hamiltonian.kept import KeptHamiltonian


class IncrementalSubspaceLocalEnergy(SubspaceLocalEnergy):
    """:class:`SubspaceLocalEnergy` for sets that overlap from step to step: only what is new is computed.

    H among the determinants seen lately is kept as a sparse matrix; those not used for longest leave when the memory is
    full. Energies are the same to the last bit whatever is kept, so nothing of it enters a checkpoint. A set whose own
    matrix would not fit is summed as :class:`SubspaceLocalEnergy` does, step by step anew.
    """

    def __init__(
        self,
        weights: SubspaceWeights = SubspaceWeights.amplitudes,
        strategy: Strategy = Strategy.auto,
        max_bytes: int = 1 << 30,
        show_costs: bool = False,
    ) -> None:
        """
        Args:
            weights: ``amplitudes`` for a variational energy, ``walkers`` for the sampler's counts (not variational).
            strategy: how connected members are found in a set too large to keep.
            max_bytes: memory for the sparse matrix on each rank, what building it takes included.
            show_costs: print what the cost model expects of every strategy, at each evaluation.

        Raises:
            UserError: ``max_bytes`` is not positive.
        """
        super().__init__(weights, strategy, show_costs)
        if max_bytes <= 0:
            raise UserError(f"max_bytes is {max_bytes}, expected more than 0: change model.local_energy.max_bytes")
        self.max_bytes = max_bytes
        self._kept: KeptHamiltonian | None = None

    def values(
        self, hamiltonian: MolecularHamiltonian, determinants: Tensor, log_psi: Tensor, rows: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """See :meth:`SubspaceLocalEnergy.values`."""
        kept = self._kept_for(hamiltonian)
        wanted = rows.cpu().numpy()
        place = kept.update(determinants, wanted) if kept.may_fit(determinants, wanted) else None
        if place is None:
            return super().values(hamiltonian, determinants, log_psi, rows)
        values = hamiltonian.local_energies(
            determinants, log_psi, rows, contract=partial(kept.product, place=place, rows=wanted)
        )
        share = 1 - kept.n_new_rows / max(1, len(wanted))
        return values, {"local_energy/kept_rows": share, "local_energy/members": float(len(kept.members))}

    def _kept_for(self, hamiltonian: MolecularHamiltonian) -> KeptHamiltonian:
        from nnqs_lightning.hamiltonian.kept import KeptHamiltonian

        if self._kept is None or self._kept.hamiltonian is not hamiltonian:
            self._kept = KeptHamiltonian(hamiltonian, self.max_bytes)
        return self._kept
