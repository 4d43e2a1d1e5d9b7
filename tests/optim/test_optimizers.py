import copy
import math

import pytest
import torch
from torch import nn

from nnqs_lightning.errors import UserError
from nnqs_lightning.optim.muon import Muon
from nnqs_lightning.optim.schedules import InverseSqrt, WarmupCosine
from nnqs_lightning.optim.soap import SOAP


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def train(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(32, 6, dtype=torch.float64, generator=generator)
        loss = (model(x) - x[:, :3].tanh()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def values(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", [SOAP, Muon])
def test_optimisers_learn(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=1e-2)
    assert train(model, optimizer, 150) < 0.5 * train(network(), optimizer, 1)


@pytest.mark.parametrize("kind", [SOAP, Muon])
def test_a_checkpoint_resumes_bit_for_bit(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=1e-2)
    train(model, optimizer, 13)
    other = copy.deepcopy(model)
    resumed = kind(other.parameters(), lr=1.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 12, start=13)
    train(other, resumed, 12, start=13)
    assert torch.equal(values(model), values(other))


def test_soap_without_bases_is_adam():
    ours, theirs = network(), network()
    train(ours, SOAP(ours.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, max_side=1), 20)
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1), 20)
    torch.testing.assert_close(values(ours), values(theirs), rtol=1e-9, atol=1e-12)


def test_soap_steps_turn_with_the_coordinates():
    """Rotating the rows and columns of the parameter rotates the path: Adam alone fails this."""
    generator = torch.Generator().manual_seed(0)
    target, left, right = (torch.randn(5, 5, dtype=torch.float64, generator=generator) for _ in range(3))
    left, right = torch.linalg.qr(left)[0], torch.linalg.qr(right)[0]
    scale = torch.linspace(1, 3, 25, dtype=torch.float64).view(5, 5)

    def path(rotated, kind):
        weight = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
        optimizer = kind([weight], lr=0.05)
        for _ in range(25):
            original = left.t() @ weight @ right if rotated else weight
            loss = (scale * (original - target)).square().sum()
            (weight.grad,) = torch.autograd.grad(loss, [weight])
            optimizer.step()
        return (left.t() @ weight @ right if rotated else weight).detach()

    torch.testing.assert_close(path(True, SOAP), path(False, SOAP), rtol=0, atol=1e-3)
    assert (path(True, torch.optim.Adam) - path(False, torch.optim.Adam)).abs().max() > 0.05


def test_muon_is_pytorchs_on_matrices_and_adamw_elsewhere():
    ours, theirs = network(), network()
    train(ours, Muon(ours.parameters(), lr=1e-2, weight_decay=0.1), 10)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    rest = [p for p in theirs.parameters() if p.ndim != 2]
    pair = [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=1e-2, weight_decay=0.1),
    ]

    class Both:
        def zero_grad(self):
            theirs.zero_grad()

        def step(self):
            for optimizer in pair:
                optimizer.step()

    train(theirs, Both(), 10)
    assert torch.equal(values(ours), values(theirs))


def test_schedules_reach_muons_rules():
    model = network()
    optimizer = Muon(model.parameters(), lr=1e-2)
    schedule = WarmupCosine(optimizer, total_steps=10)
    train(model, optimizer, 1)
    for _ in range(10):
        schedule.step()
    before = values(model)
    train(model, optimizer, 1)
    assert torch.equal(values(model), before)


def rates(schedule, optimizer, n):
    found = []
    for _ in range(n):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def sgd(lr=2.0):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def test_warmup_cosine_rises_and_falls():
    optimizer = sgd()
    found = rates(WarmupCosine(optimizer, total_steps=12, warmup_steps=4, final=0.1), optimizer, 15)
    assert found[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert found[4] == pytest.approx(2.0)
    assert found[8] == pytest.approx(2.0 * 0.55)
    assert found[12:] == pytest.approx([0.2, 0.2, 0.2])


def test_inverse_sqrt_is_the_published_schedule():
    d_model, warmup = 64, 10
    optimizer = sgd(lr=d_model**-0.5 * warmup**-0.5)
    found = rates(InverseSqrt(optimizer, warmup_steps=warmup), optimizer, 30)
    expected = [d_model**-0.5 * min(k**-0.5, k * warmup**-1.5) for k in range(1, 31)]
    assert found == pytest.approx(expected)
    assert max(found) == pytest.approx(1 / math.sqrt(d_model * warmup))


def test_a_schedule_resumes_where_it_stopped():
    optimizer = sgd()
    schedule = InverseSqrt(optimizer, warmup_steps=5)
    rates(schedule, optimizer, 7)
    other = sgd()
    resumed = InverseSqrt(other, warmup_steps=5)
    resumed.load_state_dict(schedule.state_dict())
    other.load_state_dict(optimizer.state_dict())
    assert rates(resumed, other, 4) == pytest.approx(rates(schedule, optimizer, 4))


def test_a_warmup_longer_than_the_run_is_refused():
    with pytest.raises(UserError, match="warmup_steps"):
        WarmupCosine(sgd(), total_steps=10, warmup_steps=10)
