"""The device versions against the host's, on CPU tensors; Triton's kernel in its interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fci_oracle import molecular_integrals, random_integrals

from nnqs_lightning.hamiltonian import MolecularHamiltonian, Strategy, device

Example = tuple[MolecularHamiltonian, torch.Tensor, torch.Tensor, torch.Tensor]
CASES = [(9, 4, 3), (6, 3, 2), (5, 2, 0), (66, 1, 1), "CH2 triplet"]


def example(
    case: str | tuple[int, int, int], size: int = 150
) -> tuple[MolecularHamiltonian, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hamiltonian, a random set, its log ψ (one amplitude tiny, one zero) and wanted rows."""
    integrals = molecular_integrals(case) if isinstance(case, str) else random_integrals(*case)
    hamiltonian = MolecularHamiltonian(integrals)
    generator = torch.Generator().manual_seed(1)
    determinants = hamiltonian.sector.determinants()
    determinants = determinants[torch.randperm(len(determinants), generator=generator)[:size]]
    log_psi = torch.randn(len(determinants), dtype=torch.complex128, generator=generator)
    log_psi[0] -= 2000
    log_psi[1] = -torch.inf
    rows = torch.randperm(len(determinants), generator=generator)[: len(determinants) // 2]
    return hamiltonian, determinants, log_psi, rows[rows > 1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_sums_equal_the_hosts(case: str | tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    hamiltonian, determinants, log_psi, rows = example(case)
    tables = device.DeviceTables.on(torch.device("cpu"), hamiltonian.tables)
    expected = hamiltonian.local_energies(determinants, log_psi, rows, Strategy.pair_scan)
    monkeypatch.setattr(device, "MAX_PAIRS", 1000)
    values = device.local_energies(tables, determinants, log_psi, rows)
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_elements_equal_the_hosts(case: str | tuple[int, int, int]) -> None:
    hamiltonian, determinants, _, _ = example(case, 60)
    tables = device.DeviceTables.on(torch.device("cpu"), hamiltonian.tables)
    torch.testing.assert_close(device.diagonal(tables, determinants), hamiltonian.diagonal(determinants))
    bra, ket = torch.cartesian_prod(torch.arange(len(determinants)), torch.arange(len(determinants))).T
    elements = device.matrix_elements(tables, determinants[bra], determinants[ket])
    torch.testing.assert_close(elements, hamiltonian.matrix_elements(determinants[bra], determinants[ket]))


@pytest.mark.parametrize(
    ("case", "threshold"),
    [((9, 4, 3), -1.0), ((9, 4, 3), 0.5), ((6, 3, 2), 0.0), ((5, 2, 0), 0.5), ((66, 1, 1), 0.0), ("CH2 triplet", -1.0)],
    ids=str,
)
def test_torch_connected_states_equal_the_hosts(
    case: str | tuple[int, int, int], threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hamiltonian = MolecularHamiltonian(molecular_integrals(case) if isinstance(case, str) else random_integrals(*case))
    reached = hamiltonian.connected_states(hamiltonian.sector.aufbau(), -1.0).determinants
    determinants = reached[:: 1 + len(reached) // 5]
    monkeypatch.setattr(device, "MAX_STATES", 2 * hamiltonian.n_connected)
    ours = hamiltonian._device_states(determinants, threshold)
    theirs = hamiltonian.connected_states(determinants, threshold)
    torch.testing.assert_close(ours.offsets, theirs.offsets)
    torch.testing.assert_close(ours.determinants[ours.offsets[:-1]], determinants)
    for row in range(len(determinants)):
        rows = []
        for connected in (ours, theirs):
            part = slice(connected.offsets[row], connected.offsets[row + 1])
            states, order = connected.determinants[part].flatten(1).unique(dim=0, return_inverse=True)
            rows.append(
                (states, torch.empty(len(states), dtype=torch.float64).index_copy_(0, order, connected.elements[part]))
            )
        assert len(rows[0][0]) == part.stop - part.start
        torch.testing.assert_close(rows[0], rows[1], rtol=1e-11, atol=1e-12)


def test_triton_sums_equal_the_hosts_in_the_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: the Triton kernel is untested here")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, Path(__file__)], env=environment, check=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the GPU path is untested here")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gpu_energies_equal_the_hosts(case: str | tuple[int, int, int]) -> None:
    hamiltonian, determinants, log_psi, rows = example(case)
    expected = hamiltonian.local_energies(determinants, log_psi, rows)
    values = hamiltonian.local_energies(determinants.cuda(), log_psi.cuda(), rows.cuda())
    torch.testing.assert_close(values.cpu(), expected, rtol=1e-10, atol=1e-10)


def check_triton() -> None:
    """Run by a process of its own: the interpreter is chosen when Triton is imported."""
    from nnqs_lightning.hamiltonian.triton_pairs import off_diagonal_sums

    for case, size in ((CASES[0], 70), (CASES[3], 40)):
        hamiltonian, determinants, log_psi, rows = example(case, size)
        tables = device.DeviceTables.on(torch.device("cpu"), hamiltonian.tables)
        sums = off_diagonal_sums(tables, determinants, log_psi, rows)
        expected = hamiltonian.local_energies(determinants, log_psi, rows, Strategy.pair_scan)
        values = sums + hamiltonian.diagonal(determinants[rows])
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-10)


if __name__ == "__main__":
    check_triton()
