"""The final figures of a wave function at the end of ``validate``: a table, a JSON file and a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from nnqs_lightning import distributed
from nnqs_lightning.chem import ReferenceEnergies
from nnqs_lightning.errors import UserError
from nnqs_lightning.fock import SampleBatch
from nnqs_lightning.sampling import MetropolisSampler, Sampler
from nnqs_lightning.training.module import NNQSModule
from nnqs_lightning.training.report import LABELS, print_energies
from nnqs_lightning.vmc.estimators import EnergyEstimate
from nnqs_lightning.vmc.final_figures import Limits, Row, SetFigures, set_figures, standard_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nnqs_lightning.vmc.final_figures import Line


class FinalFigures(Callback):
    """Reports what a wave function is worth at the end of ``validate``; each energy is said to be variational or not.

    From the determinants of all draws together: the network's energy, the Rayleigh quotient of ψ cut off outside the
    set, the lowest state of H within it, the Epstein–Nesbet correction to that, and two extrapolations from its heavier
    parts. The table is printed; numbers go to ``figures.json`` in the run folder and the extrapolations to
    ``figures.png`` (``figures-2.json``, … where earlier ones are).

    Args:
        subspace: Whether the set is diagonalised; without, only the network's energy is reported.
        max_determinants: The heaviest so many determinants of a larger set are diagonalised.
        exact_couplings: Determinants × connected states up to which the correction leaves nothing out.
        screening: Couplings in hartree that a correction beyond that leaves out.
        truncations: States to extrapolate from: the set, its heavier half, quarter, …
        plot: Whether to draw the extrapolations.
    """

    def __init__(
        self,
        subspace: bool = True,
        max_determinants: int = 20_000,
        exact_couplings: int = 20_000_000,
        screening: float = 1e-6,
        truncations: int = 4,
        plot: bool = True,
    ) -> None:
        for name, value in {"max_determinants": max_determinants, "truncations": truncations}.items():
            if value < 1:
                raise UserError(f"figures.{name} is {value}, expected at least 1")
        if screening < 0 or exact_couplings < 0:
            raise UserError(
                f"figures.screening is {screening} and figures.exact_couplings {exact_couplings}, expected 0 or more"
            )
        self.subspace = subspace
        self.limits = Limits(max_determinants, exact_couplings, screening, truncations)
        self.plot = plot
        self._draws: list[SampleBatch] = []
        self._estimates: list[EnergyEstimate] = []
        self._enumerated = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draws, self._estimates = [], []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        # A validation within ``fit`` leaves no figures, so it keeps no draws.
        if trainer.state.fn == "validate":
            self._draws.append(batch)
            self._estimates.append(outputs["estimate"])
            self._enumerated = outputs["variational"]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, NNQSModule)
        if not self._draws:
            return
        sampler = trainer.datamodule.evaluation_sampler  # type: ignore[attr-defined]
        rows = [network_energy(self._estimates, self._draws, sampler, self._enumerated)]
        determinants, log_psi = _gathered(self._draws)
        if not trainer.is_global_zero:
            return
        figures = None
        if self.subspace:
            figures = set_figures(pl_module.hamiltonian, *_distinct(determinants, log_psi), self.limits)
            rows += figures.rows
        self._report(trainer, pl_module, rows, figures)

    def _report(self, trainer: Trainer, module: NNQSModule, rows: list[Row], figures: SetFigures | None) -> None:
        references = module.system.reference_energies()
        print_energies(
            module.system.name,
            references,
            [(row.label, row.energy, row.error) for row in rows],
            _caption(module, figures),
            remarks=[("yes" if row.variational else "no") + f": {row.note}" for row in rows],
        )
        path = _free_path(Path(trainer.default_root_dir) / "figures.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        sector = module.hamiltonian.sector
        content = {
            "system": module.system.name,
            "n_orb": sector.n_orb,
            "n_alpha": sector.n_alpha,
            "n_beta": sector.n_beta,
            "checkpoint": trainer.ckpt_path,
            "unit": "hartree",
            "rows": {row.key: {k: v for k, v in vars(row).items() if k != "key"} for row in rows},
            "references": {name: getattr(references, name) for name in LABELS},
            **({} if figures is None else {"set": {k: v for k, v in figures.as_dict().items() if k != "rows"}}),
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        print(f"figures written to {path}")
        if self.plot and figures is not None:
            plot_extrapolations(path.with_suffix(".png"), module.system.name, figures, references)


def network_energy(
    estimates: list[EnergyEstimate], draws: list[SampleBatch], sampler: Sampler, enumerated: bool
) -> Row:
    """The network's own energy, with a standard error that no correlation between samples makes too small.

    Several draws are independent of each other whatever the sampler, so their spread tells. Of a single draw the
    walkers of a decoding tree are independent; visits of a chain are not, and weights without walkers tell nothing.
    """
    energies = [estimate.mean for estimate in estimates]
    energy = sum(energies) / len(energies)
    label = "this wave function"
    if enumerated:
        return Row("network", label, energy, 0.0, True, "the whole sector, summed")
    if len(energies) > 1:
        return Row("network", label, energy, standard_error(energies), False, f"n = {len(energies)} independent draws")
    walkers = draws[0].n_walkers
    if walkers and not isinstance(_innermost(sampler), MetropolisSampler):
        return Row("network", label, energy, estimates[0].error, False, f"n = {walkers:.4g} independent walkers")
    return Row("network", label, energy, None, False, "one draw: set data.evaluation_draws for an error")


def _innermost(sampler: Sampler) -> Sampler:
    """What draws behind a core set or a schedule."""
    while isinstance(inner := getattr(sampler, "sampler", None), Sampler):
        sampler = inner
    return sampler


def _gathered(draws: list[SampleBatch]) -> tuple[torch.Tensor, torch.Tensor]:
    """Determinants and log ψ of all draws and ranks; collective."""
    determinants = torch.cat([draw.determinants for draw in draws])
    log_psi = torch.cat([draw.log_psi for draw in draws])
    return distributed.all_gather_rows(determinants)[0].cpu(), distributed.all_gather_rows(log_psi)[0].cpu()


def _distinct(determinants: torch.Tensor, log_psi: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each determinant once."""
    from nnqs_lightning.fock.lookup import DeterminantTable  # imports numba

    table = DeterminantTable(determinants[:0])
    position = table.insert(determinants)
    values = torch.empty(len(table), dtype=log_psi.dtype)
    values[position] = log_psi
    return table.rows, values


def _caption(module: NNQSModule, figures: SetFigures | None) -> str:
    sector = module.hamiltonian.sector
    space = f"{sector.n_alpha} + {sector.n_beta} electrons in {sector.n_orb} orbitals"
    if figures is None:
        return space
    return (
        f"⟨S²⟩ in the sampled set: {figures.s2_network:.4f} of ψ, {figures.s2_subspace:.4f} of the lowest state; "
        f"their overlap is {figures.overlap:.6f}; {space}"
    )


def _free_path(path: Path) -> Path:
    """``path``, or the first of ``…-2``, ``…-3``, … that does not exist."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate


def plot_extrapolations(path: Path, name: str, figures: SetFigures, references: ReferenceEnergies) -> None:
    """Energy of the truncations against variance and against second-order correction, with the lines, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    best = references.best()
    zero = best[1] if best else figures.truncations[-1].energy
    title = LABELS[best[0]] if best else "the lowest state in the set"
    energies = [1e3 * (t.energy - zero) for t in figures.truncations]
    _panel(left, [1e3 * t.variance for t in figures.truncations], energies, figures.variance_line, zero)
    _panel(right, [-1e3 * t.second_order for t in figures.truncations], energies, figures.correction_line, zero)
    left.set_xlabel("variance / 10⁻³ Ha²")
    right.set_xlabel("−(second-order correction) / mHa")
    left.set_ylabel(f"(E − {title}) / mHa")
    figure.suptitle(f"{name}: lowest states in parts of the sampled set (extrapolations are not variational)")
    figure.savefig(path, dpi=150)


def _panel(axes: Axes, x: list[float], energies: list[float], line: Line | None, zero: float) -> None:
    axes.plot(x, energies, "o", label="lowest states")
    axes.axhline(0.0, color="grey", linestyle=":")
    if line is not None:
        ends = [0.0, max(x)]
        fit = [1e3 * (line.intercept - zero) + line.slope * value for value in ends]
        axes.plot(ends, fit, "-", color="tab:red", label="fit")
        axes.errorbar(0.0, fit[0], yerr=1e3 * line.error, fmt="s", color="tab:red", capsize=4)
    axes.legend()
