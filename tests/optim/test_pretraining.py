import pytest
import torch
from torch import nn

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.chem import Molecule
from nnqs_lightning.errors import UserError
from nnqs_lightning.hamiltonian import MolecularHamiltonian
from nnqs_lightning.optim import Pretraining
from nnqs_lightning.optim.pretraining import _least_squares
from nnqs_lightning.vmc.pretrain import CISD, SelectedCI, StateVector, TargetState

LITHIUM_HYDRIDE = [("Li", 0.0, 0.0, 0.0), ("H", 0.0, 0.0, 1.5949)]


@pytest.fixture(scope="module")
def system():
    integrals = Molecule(atoms=LITHIUM_HYDRIDE, name="lih", symmetry=True).integrals()
    return integrals, MolecularHamiltonian(integrals)


def make(integrals, **options):
    torch.manual_seed(0)
    return TransformerAnsatz(integrals, **{"d_model": 16, "n_heads": 2, "n_layers": 1, "point_group": True, **options})


def overlap(ansatz, state):
    with torch.no_grad():
        psi = torch.exp(ansatz.log_psi(state.determinants))
    return (state.coefficients.conj() @ psi).abs().square().item()


def test_the_fit_meets_the_target_and_logs_its_progress(system):
    integrals, hamiltonian = system
    ansatz = make(integrals)
    state = CISD().vector(hamiltonian)
    assert overlap(ansatz, state) < 0.5
    log = list(Pretraining(CISD(), steps=25).run(ansatz, hamiltonian))
    assert log[-1]["pretrain/misfit"] < 1e-3 * log[0]["pretrain/misfit"]
    assert overlap(ansatz, state) > 0.998
    assert log[-1]["pretrain/infidelity"] == pytest.approx(1 - overlap(ansatz, state), abs=1e-5)


def test_amplitudes_and_signs_follow_to_high_accuracy_in_double_precision(system):
    integrals, hamiltonian = system
    ansatz = make(integrals).double()
    target = SelectedCI(20)
    list(Pretraining(target, steps=60, tolerance=1e-12, energy_shift=None).run(ansatz, hamiltonian))
    state = target.vector(hamiltonian)
    with torch.no_grad():
        psi = torch.exp(ansatz.log_psi(state.determinants))
    ratio = psi / state.coefficients
    strong = state.coefficients.abs() > 0.02
    assert (ratio[strong] / ratio[strong][0] - 1).abs().max() < 1e-2
    assert overlap(ansatz, state) > 0.999


def test_a_step_is_the_damped_least_squares_one_with_the_row_of_what_leaks():
    generator = torch.Generator().manual_seed(1)
    jacobian, wanted, row = (torch.randn(shape, generator=generator).double() for shape in ((6, 9), (1, 6), (1, 6)))
    damping, wanted_row = 0.1, -0.7

    class Space:
        def solve(self, right, damping):
            gram = jacobian @ jacobian.t() + damping * torch.eye(6)
            return torch.linalg.solve(gram, right.flatten(1).t()).t().view_as(right), damping

    x = _least_squares(Space(), wanted, row, wanted_row, damping)
    matrix = torch.cat([jacobian, row @ jacobian, damping**0.5 * torch.eye(9)])
    right = torch.cat([wanted[0], torch.tensor([wanted_row]), torch.zeros(9)]).double()
    expected = torch.linalg.lstsq(matrix, right[:, None]).solution[:, 0]
    assert torch.allclose(jacobian.t() @ x[0], expected, atol=1e-10)


def test_little_of_psi_is_left_outside_of_the_target(system):
    integrals, hamiltonian = system
    ansatz, target = make(integrals), SelectedCI(10)
    list(Pretraining(target).run(ansatz, hamiltonian))
    with torch.no_grad():
        inside = torch.exp(2 * ansatz.log_psi(target.vector(hamiltonian).determinants).real).sum()
    assert 1 - inside < 1e-3


def test_a_bound_on_the_determinants_of_a_step_is_kept(system):
    integrals, hamiltonian = system
    log = list(Pretraining(steps=5, max_samples=20).run(make(integrals), hamiltonian))
    assert max(figures["pretrain/rows"] for figures in log) == 64  # the fewest that a step takes
    assert log[-1]["pretrain/misfit"] < log[0]["pretrain/misfit"]


def test_the_fit_is_deterministic(system):
    integrals, hamiltonian = system
    runs = []
    for _ in range(2):
        ansatz = make(integrals)
        list(Pretraining(steps=4).run(ansatz, hamiltonian))
        runs.append(torch.cat([p.detach().flatten() for p in ansatz.parameters()]))
    assert torch.equal(*runs)


def test_a_target_of_another_irrep_is_refused(system):
    integrals, hamiltonian = system

    class Wrong(TargetState):
        def vector(self, hamiltonian):
            # One electron from the highest occupied orbital into a π orbital.
            determinants = hamiltonian.sector.determinants()
            with torch.no_grad():
                outside = torch.isinf(make(integrals).log_psi(determinants).real)
            return StateVector(determinants[outside][:1], torch.ones(1, dtype=torch.complex128), 0.0)

    with pytest.raises(UserError, match="irrep"):
        list(Pretraining(Wrong()).run(make(integrals), hamiltonian))


def test_no_steps_change_nothing(system):
    integrals, hamiltonian = system
    ansatz = make(integrals)
    before = nn.utils.parameters_to_vector(ansatz.parameters()).detach().clone()
    assert list(Pretraining(steps=0).run(ansatz, hamiltonian)) == []
    assert torch.equal(nn.utils.parameters_to_vector(ansatz.parameters()), before)


@pytest.mark.parametrize(
    "option", [{"steps": -1}, {"damping": 0.0}, {"energy_shift": -1.0}, {"max_change": 0}, {"left_out": 1.0}]
)
def test_impossible_options_are_refused(option):
    with pytest.raises(UserError, match=next(iter(option))):
        Pretraining(**option)
