"""What all samplers share that walk the decoding tree."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nnqs_lightning import distributed
from nnqs_lightning.ansatz.base import Ansatz, AutoregressiveAnsatz
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.sampling import tree
from nnqs_lightning.sampling.base import Sampler
from nnqs_lightning.sampling.density import Density, density_from, density_state
from nnqs_lightning.sampling.leaves import Leaves, level
from nnqs_lightning.sampling.shares import Share, guessed_cut, own_share


class AutoregressiveSampler(Sampler):
    """Walks the tree of prefixes in bounded memory, shared out between ranks by the density of the last draw."""

    def __init__(self, max_cache_bytes: int, chunk_size: int) -> None:
        if chunk_size < 1:
            raise UserError(f"data.sampler.chunk_size is {chunk_size}: set it to 1 or more")
        self.max_cache_bytes = max_cache_bytes
        self.chunk_size = chunk_size
        self._density: Density | None = None
        self._drawn: Density | None = None

    def observe(self, batch: SampleBatch) -> None:
        """Share out the next draw by the density of this one."""
        self._density = self._drawn

    def state_dict(self) -> dict[str, Any]:
        """The density by which ranks share the next draw."""
        return density_state(self._density)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._density = density_from(state)

    def checked(self, ansatz: Ansatz, key: str, n_unique: int | None) -> AutoregressiveAnsatz:
        """The same ansatz.

        Raises:
            UserError: it has no conditionals, or its sector is smaller than ``n_unique``, set by ``data.sampler.key``.
        """
        if not isinstance(ansatz, AutoregressiveAnsatz):
            raise UserError(
                f"data.sampler is {type(self).__name__}, which needs conditionals, and model.ansatz "
                f"({type(ansatz).__name__}) has none: choose nnqs_lightning.sampling.SumOverStates or an "
                "AutoregressiveAnsatz"
            )
        size = ansatz.sector.size
        if n_unique is not None and n_unique > size:
            raise UserError(
                f"data.sampler.{key} is {n_unique}, but the sector has {size} determinants: set it to {size} or less"
            )
        return ansatz

    def rows(self, ansatz: AutoregressiveAnsatz) -> int:
        """Prefixes decoded together: ``chunk_size`` or what the cache bound allows for.

        Raises:
            UserError: not even one path through the decoder fits.
        """
        path = sum(ansatz.cache_bytes(depth) for depth in range(1, ansatz.n_steps))
        if path > self.max_cache_bytes:
            raise UserError(
                f"data.sampler.max_cache_bytes is {self.max_cache_bytes}, but one path through the decoder takes "
                f"{path} bytes: set it to {path} or more ({1024 * path} lets 1,024 prefixes be decoded together)"
            )
        return min(self.chunk_size, self.max_cache_bytes // max(path, 1))

    def own_share(self, ansatz: AutoregressiveAnsatz, root: tree.Branch, rule: tree.Rule, n_walkers: int) -> Share:
        """The part of the tree that this rank walks; ``n_walkers`` scales the guess where no draw has been seen."""
        rank, world = distributed.rank(), distributed.world_size()
        if world == 1:
            return Share([root])

        def estimate(nodes: tree.Nodes) -> Tensor:
            return (n_walkers * nodes.log_p.exp()).clamp(min=1).sqrt()

        cuts = None if self._density is None else self._density.cuts(world).to(root.nodes.keys.device)

        def cut(part: int) -> Tensor | None:
            if part in (0, world):
                return None
            return guessed_cut(ansatz, root, rule, estimate, part, world) if cuts is None else cuts[part - 1]

        return own_share(ansatz, root, rule, cut(rank), cut(rank + 1))

    def settle(self, found: Leaves, n_orb: int) -> Leaves:
        """Leaves levelled over the ranks, in lexicographic order; remembers where the work was."""
        found.sort()
        if distributed.world_size() > 1:
            self._drawn = Density.measure(found, n_orb)
            found = level(found)
            found.sort()
        return found
