import pytest
import torch
from toy_ansatz import ToyAnsatz, dense_hamiltonian, dense_scores, full_sample, subspace_energies

from nnqs_lightning.errors import UserError
from nnqs_lightning.optim import Direction, MinSR, Spring
from nnqs_lightning.optim.natural import inclusion_probabilities, largest_step, systematic_draw

CASES = [(False, 4), (False, 40), (True, 4), (True, 40)]


def gradient_of(ansatz, sample, coefficients):
    surrogate = Direction.surrogate(coefficients, ansatz.log_psi(sample.determinants))
    gradients = torch.autograd.grad(surrogate, list(ansatz.parameters()), materialize_grads=True)
    return list(gradients), torch.cat([g.flatten() for g in gradients])


def reference(ansatz, sample, energies):
    """Centred, weighted scores [2N, P] and residuals [2N]: dense, by jacrev."""
    scores = dense_scores(ansatz, sample.determinants)
    weights = energies.weights
    centred = scores - torch.einsum("i,aip->ap", weights, scores)[:, None]
    residual = energies.values - (weights * energies.values).sum()
    rows = (centred * weights.sqrt()[:, None]).flatten(0, 1)
    return rows, torch.cat([residual.real * weights.sqrt(), residual.imag * weights.sqrt()])


def damped(rows, right, damping):
    identity = torch.eye(rows.shape[1], dtype=rows.dtype)
    return torch.linalg.solve(rows.t() @ rows + damping * identity, rows.t() @ right)


@pytest.mark.parametrize(("shared", "width"), CASES)
def test_minsr_solves_the_damped_normal_equations(shared, width):
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector, shared=shared, width=width)
    sample = full_sample(ansatz, 80)
    energies = subspace_energies(matrix[:80, :80], sample)
    coefficients, stats = MinSR(max_change=None).coefficients(ansatz, sample, energies, 0.1)
    _, found = gradient_of(ansatz, sample, coefficients)
    rows, residual = reference(ansatz, sample, energies)
    expected = damped(rows, residual, 1e-3)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    assert stats["direction/change"] == pytest.approx(0.1 * (rows @ expected).norm().item(), rel=1e-6)
    assert stats["direction/norm"] == pytest.approx(0.1 * expected.norm().item(), rel=1e-6)
    assert stats["direction/trust"] == 1


@pytest.mark.parametrize(("shared", "width"), CASES)
def test_energy_metric_weighs_determinants_by_the_diagonal_of_the_hessian(shared, width):
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector, shared=shared, width=width)
    sample = full_sample(ansatz, 80)
    energies = subspace_energies(matrix[:80, :80], sample)
    direction = MinSR(max_change=None, energy_shift=0.5)
    coefficients, stats = direction.coefficients(ansatz, sample, energies, 0.1)
    _, found = gradient_of(ansatz, sample, coefficients)
    rows, residual = reference(ansatz, sample, energies)
    mean = (energies.weights * energies.values.real).sum()
    metric = ((matrix.diagonal()[:80] - mean).clamp(min=0) + 0.5).repeat(2)
    hessian = rows.t() @ (metric[:, None] * rows) + 1e-3 * torch.eye(rows.shape[1], dtype=rows.dtype)
    expected = torch.linalg.solve(hessian, rows.t() @ residual)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    assert stats["direction/change"] == pytest.approx(0.1 * (rows @ expected).norm().item(), rel=1e-6)


@pytest.mark.parametrize(("bound", "key"), [("max_change", "direction/change"), ("max_norm", "direction/norm")])
def test_bounds_shorten_the_step_and_keep_its_direction(bound, key):
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz, 80)
    energies = subspace_energies(matrix[:80, :80], sample)
    free, _ = MinSR(max_change=None).coefficients(ansatz, sample, energies, 1.0)
    bounded, stats = MinSR(**{"max_change": None, bound: 1e-3}).coefficients(ansatz, sample, energies, 1.0)
    assert stats[key] == pytest.approx(1e-3, rel=1e-9)
    torch.testing.assert_close(bounded, stats["direction/trust"] * free, rtol=1e-9, atol=1e-15)


def test_predicted_change_is_the_change_of_the_state():
    sector, matrix = dense_hamiltonian("h4")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz)
    energies = subspace_energies(matrix, sample)
    step = 1e-4
    coefficients, stats = MinSR(max_change=None).coefficients(ansatz, sample, energies, step)
    gradients, _ = gradient_of(ansatz, sample, coefficients)
    with torch.no_grad():
        for parameter, gradient in zip(ansatz.parameters(), gradients, strict=True):
            parameter -= step * gradient
        after = ansatz.log_psi(sample.determinants)
    before, after = (torch.exp(v - v.real.max()) for v in (sample.log_psi, after))
    overlap = (before.conj() @ after).abs() / before.norm() / after.norm()
    assert torch.arccos(overlap).item() == pytest.approx(stats["direction/change"], rel=1e-2)


@pytest.mark.parametrize(("shared", "width"), CASES)
@pytest.mark.parametrize("max_change", [None, 5e-3])
def test_spring_equals_its_dense_recursion(shared, width, max_change):
    """Through SGD with momentum, as in a run; the bounded one against a search over the scale of ε."""
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector, shared=shared, width=width)
    direction = Spring(momentum=0.8, damping=1e-2, max_change=max_change)
    learning_rate = 0.02
    optimizer = torch.optim.SGD(ansatz.parameters(), lr=learning_rate, momentum=0.8)
    phi = torch.zeros(sum(p.numel() for p in ansatz.parameters()), dtype=torch.float64)
    for _ in range(4):
        sample = full_sample(ansatz, 60)
        energies = subspace_energies(matrix[:60, :60], sample)
        rows, residual = reference(ansatz, sample, energies)
        coefficients, stats = direction.coefficients(ansatz, sample, energies, learning_rate)
        momentum = 0.8 * phi
        phi = momentum + damped(rows, stats["direction/trust"] * residual - rows @ momentum, 1e-2)
        change = learning_rate * (rows @ phi).norm().item()
        assert stats["direction/change"] == pytest.approx(change, rel=1e-6)
        assert stats["direction/norm"] == pytest.approx(learning_rate * phi.norm().item(), rel=1e-6)
        if max_change is not None:
            assert change == pytest.approx(max_change, rel=1e-6)
        gradients, flat = gradient_of(ansatz, sample, coefficients)
        torch.testing.assert_close(flat, phi - momentum, rtol=1e-7, atol=1e-9)
        before = torch.cat([p.detach().flatten() for p in ansatz.parameters()])
        for parameter, gradient in zip(ansatz.parameters(), gradients, strict=True):
            parameter.grad = gradient
        direction.observe_gradient(gradients)
        optimizer.step()
        after = torch.cat([p.detach().flatten() for p in ansatz.parameters()])
        torch.testing.assert_close(after - before, -learning_rate * phi, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(direction.previous, phi, rtol=1e-7, atol=1e-9)


def test_spring_remembers_through_a_checkpoint():
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz, 60)
    energies = subspace_energies(matrix[:60, :60], sample)
    direction = Spring()
    first, _ = direction.coefficients(ansatz, sample, energies, 0.01)
    direction.observe_gradient(gradient_of(ansatz, sample, first)[0])
    restored = Spring()
    restored.load_state_dict(direction.state_dict())
    expected, _ = direction.coefficients(ansatz, sample, energies, 0.01)
    found, _ = restored.coefficients(ansatz, sample, energies, 0.01)
    assert torch.equal(found, expected)
    assert not torch.equal(found, first)


def test_what_a_step_promised_is_read_back_in_full_by_a_module_that_was_cast():
    saved = MinSR(damping=1e-3)
    saved.promise = torch.tensor([-75.015530189, 1e-7, 1e-8, 1.0], dtype=torch.float64)
    saved.length = torch.tensor(0.3, dtype=torch.float64)
    resumed = MinSR().float()
    resumed.load_state_dict(saved.state_dict())
    assert torch.equal(resumed.promise, saved.promise)
    assert torch.equal(resumed.damping, saved.damping)
    assert torch.equal(resumed.length, saved.length)


def test_steps_lower_the_energy_to_the_exact_one():
    sector, matrix = dense_hamiltonian("h2")
    ansatz = ToyAnsatz(sector, width=8)
    direction = MinSR(damping=1e-5, max_change=0.1)
    optimizer = torch.optim.SGD(ansatz.parameters(), lr=0.3)
    for _ in range(100):
        sample = full_sample(ansatz)
        energies = subspace_energies(matrix, sample)
        coefficients, _ = direction.coefficients(ansatz, sample, energies, 0.3)
        for parameter, gradient in zip(ansatz.parameters(), gradient_of(ansatz, sample, coefficients)[0], strict=True):
            parameter.grad = gradient
        optimizer.step()
    energy = (energies.weights * energies.values.real).sum().item()
    assert energy == pytest.approx(torch.linalg.eigvalsh(matrix)[0].item(), abs=1e-6)


@pytest.mark.parametrize("energy_shift", [None, 0.5])
def test_promised_fall_is_the_fall_of_a_small_step(energy_shift):
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz)
    energies = subspace_energies(matrix, sample)
    step = 1e-3
    direction = MinSR(max_change=None, energy_shift=energy_shift)
    coefficients, stats = direction.coefficients(ansatz, sample, energies, step)
    gradients, _ = gradient_of(ansatz, sample, coefficients)
    with torch.no_grad():
        for parameter, gradient in zip(ansatz.parameters(), gradients, strict=True):
            parameter -= step * gradient
    after = subspace_energies(matrix, full_sample(ansatz))
    fall = ((energies.weights * energies.values).sum() - (after.weights * after.values).sum()).real.item()
    assert stats["direction/promise"] == pytest.approx(fall, rel=0.05)


def test_damping_follows_kept_and_broken_promises():
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz)
    energies = subspace_energies(matrix, sample)
    direction = MinSR(damping=1e-3, min_damping=4e-4)

    def damping_after(fall):
        mean = (energies.weights * energies.values.real).sum().item()
        direction.promise = torch.tensor([mean + fall, 0.1, 0.0, 1.0], dtype=torch.float64)
        return direction.coefficients(ansatz, sample, energies, 0.1)[1]["direction/damping"]

    assert damping_after(0.1) == pytest.approx(5e-4)
    assert damping_after(0.1) == pytest.approx(4e-4)
    assert damping_after(0.05) == pytest.approx(4e-4)
    assert damping_after(-0.05) == pytest.approx(1.6e-3)
    assert damping_after(float("nan")) == pytest.approx(6.4e-3)
    constant = MinSR(damping=1e-3)
    constant.promise = torch.tensor([0.0, 0.1, 0.0, 1.0], dtype=torch.float64)
    assert constant.coefficients(ansatz, sample, energies, 0.1)[1]["direction/damping"] == pytest.approx(1e-3)


def length_after(direction, length, made, fall, noisy=False):
    """Share of a step after one that promised a fall of 0.2 less 0.1."""
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz)
    if noisy:  # a walker for each determinant
        sample.counts = torch.ones_like(sample.weights, dtype=torch.int64)
    energies = subspace_energies(matrix, sample)
    direction.length = torch.tensor(length, dtype=torch.float64)
    mean = (energies.weights * energies.values.real).sum().item()
    direction.promise = torch.tensor([mean + fall, 0.2, 0.1, made], dtype=torch.float64)
    direction.coefficients(ansatz, sample, energies, 0.1)
    return float(direction.length)


@pytest.mark.parametrize(
    ("length", "made", "fall", "expected"),
    [
        (1.0, 1.0, 0.0, 0.5),  # twice as curved as the metric: half the way was best
        (1.0, 1.0, -0.2, 0.25),
        (1.0, 0.2, 0.0, 0.1),  # the other bounds had made it short, and it was too long all the same
        (1.0, 0.2, 0.15, 1.0),
        (0.3, 0.3, 0.15, 0.6),  # less curved: twice as far was best
        (0.3, 0.3, 0.3, 0.6),  # a straight line falls on and on
        (0.1, 0.1, -9.0, 0.05),
        (1.0, 1.0, float("nan"), 0.25),
    ],
)
def test_the_next_step_ends_where_the_parabola_through_the_last_one_is_lowest(length, made, fall, expected):
    direction = MinSR(min_damping=1e-6, max_change=None)
    assert length_after(direction, length, made, fall) == pytest.approx(expected)


def test_where_noise_hides_what_was_best_steps_grow_back():
    direction = MinSR(min_damping=1e-6)
    assert length_after(direction, 0.4, 0.4, -0.2, noisy=True) == pytest.approx(0.5)


def test_steps_keep_their_length_without_adaptation_and_with_memory():
    assert length_after(MinSR(), 0.4, 0.4, -0.2) == pytest.approx(0.4)
    assert length_after(Spring(min_damping=1e-6), 1.0, 1.0, -0.2) == 1


@pytest.mark.parametrize("energy_shift", [None, 0.5])
def test_a_promise_parts_the_fall_by_orders(energy_shift):
    """Along the step d the energy falls by 2 lr ε·Õd to first order; the metric has the energy's curvature or none."""
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz, 80)
    energies = subspace_energies(matrix[:80, :80], sample)
    direction = MinSR(max_change=0.01, energy_shift=energy_shift)
    coefficients, stats = direction.coefficients(ansatz, sample, energies, 0.1)
    _, step = gradient_of(ansatz, sample, coefficients)
    rows, residual = reference(ansatz, sample, energies)
    energy = (energies.weights * energies.values.real).sum()
    _, first_order, second_order, made = direction.promise.tolist()
    assert float(direction.promise[0]) == pytest.approx(float(energy))
    assert first_order == pytest.approx(2 * 0.1 * (residual @ rows @ step).item())
    metric = (matrix.diagonal()[:80] - energy).clamp(min=0) + (energy_shift or 0)
    curved = 0.1**2 * (metric.repeat(2) * (rows @ step).square()).sum().item()
    assert second_order == (0 if energy_shift is None else pytest.approx(curved))
    assert made == stats["direction/trust"] < 1


def test_a_checkpoint_from_before_steps_had_a_length_is_read():
    state = MinSR(damping=2e-3).state_dict()
    del state["length"]
    state["promise"] = torch.tensor([-75.0, 0.1], dtype=torch.float64)
    resumed = MinSR()
    resumed.load_state_dict(state)
    assert (float(resumed.damping), float(resumed.length)) == (2e-3, 1.0)
    assert resumed.promise.isnan().all()


def test_underflowed_and_infinite_local_energies_take_no_part():
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz, 60)
    energies = subspace_energies(matrix[:60, :60], sample)
    kept = torch.ones(60, dtype=torch.bool)
    kept[[3, 50]] = False
    energies.weights[~kept] = 0
    energies.values[3], energies.values[50] = complex("nan"), complex("inf")
    energies.weights /= energies.weights.sum()
    coefficients, _ = MinSR().coefficients(ansatz, sample, energies, 0.1)
    sample.determinants = sample.determinants[kept]
    energies.values, energies.weights = energies.values[kept], energies.weights[kept]
    alone, _ = MinSR().coefficients(ansatz, sample, energies, 0.1)
    assert torch.equal(coefficients[~kept], torch.zeros(2, dtype=torch.complex128))
    torch.testing.assert_close(coefficients[kept], alone)


def test_solve_on_a_few_determinants_leaves_the_others_out():
    sector, matrix = dense_hamiltonian("lih")
    ansatz = ToyAnsatz(sector)
    sample = full_sample(ansatz, 60)
    energies = subspace_energies(matrix[:60, :60], sample)
    coefficients, _ = MinSR(max_samples=20).coefficients(ansatz, sample, energies, 0.1)
    assert int((coefficients != 0).sum()) == 20


def test_draw_includes_rows_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    importance = torch.rand(50, dtype=torch.float64, generator=generator) ** 8
    importance[5] = 0
    inclusion = inclusion_probabilities(importance, 12)
    assert inclusion.sum().item() == pytest.approx(12)
    assert inclusion[5] == 0
    assert inclusion.max() == 1
    unsure = inclusion < 1
    ratios = inclusion[unsure] / importance[unsure].clamp(min=1e-300)
    torch.testing.assert_close(ratios[ratios > 0], ratios.max().expand(int((ratios > 0).sum())))
    draws = torch.stack([systematic_draw(inclusion, seed) for seed in range(4000)])
    assert set(draws.sum(1).tolist()) == {12}
    torch.testing.assert_close(draws.double().mean(0), inclusion, atol=0.03, rtol=0)


@pytest.mark.parametrize("quadratic", [(4.0, 0.5, 0.25), (4.0, -1.0, 0.25), (0.1, 0.0, 0.0), (1.0, 0.0, 9.0)])
def test_largest_step_is_the_largest(quadratic):
    a, b, c = quadratic
    s = largest_step(torch.tensor(quadratic, dtype=torch.float64), 1.0)
    grid = torch.linspace(0, 1, 100001, dtype=torch.float64)
    values = a * grid**2 + 2 * b * grid + c
    allowed = grid[values <= 1 + 1e-12]
    expected = allowed.max() if len(allowed) else grid[values.argmin()]
    assert s == pytest.approx(expected.item(), abs=2e-5)


@pytest.mark.parametrize("option", [{"damping": 0}, {"max_change": -1}, {"energy_shift": 0}, {"max_samples": 0}])
def test_impossible_options_are_refused(option):
    with pytest.raises(UserError, match=next(iter(option))):
        MinSR(**option)
