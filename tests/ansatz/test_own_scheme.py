"""The scheme printed in docs/positions.md works as it stands, from the configuration alone."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import jsonargparse
import pytest
import torch

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.base import AnsatzFactory
from nnqs_lightning.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "positions.md"
OWN = """
trainer: {max_steps: 2, accelerator: cpu, enable_progress_bar: false}
report: {plot: false, final_draws: 0}
model:
  system: {class_path: nnqs_lightning.chem.HydrogenChain, init_args: {n_atoms: 4}}
  pretraining: null
  ansatz:
    class_path: nnqs_lightning.ansatz.TransformerAnsatz
    init_args:
      d_model: 8
      n_heads: 2
      n_layers: 1
      positional: {class_path: own_scheme.SameSide, init_args: {scale: 2.0}}
"""


@pytest.fixture(autouse=True)
def own_scheme(tmp_path, monkeypatch):
    """The last listing of the page, in a file outside of the package."""
    source = re.search(r"((?:    .*\n|\n)+)\Z", PAGE.read_text()).group(1)
    (tmp_path / "own_scheme.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_scheme", raising=False)


def test_the_documented_scheme_plugs_in_by_its_class_path(make_integrals):
    parser = jsonargparse.ArgumentParser(exit_on_error=False, parser_mode="omegaconf")
    parser.add_argument("--ansatz", type=AnsatzFactory, default=TransformerAnsatz)
    class_path = "nnqs_lightning.ansatz.TransformerAnsatz"
    config = parser.parse_object(
        {
            "ansatz": {
                "class_path": class_path,
                "init_args": {"positional": {"class_path": "own_scheme.SameSide", "init_args": {"scale": 2.0}}},
            }
        }
    )
    ansatz = parser.instantiate(config).ansatz(make_integrals(5, 3, 2)).double()
    scheme = ansatz.decoder.positional
    assert type(scheme).__name__ == "SameSide"
    torch.nn.init.normal_(scheme.weight)
    log_psi = ansatz.log_psi(ansatz.sector.determinants())
    assert abs((2 * log_psi.real).exp().sum().item() - 1) < 1e-12
    log_psi.real[3].backward()
    assert scheme.weight.grad.abs().min().item() > 0


def test_the_documented_scheme_trains_through_the_configuration_alone(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    main(["fit", "--config", str(tmp_path / "own.yaml"), f"--trainer.default_root_dir={tmp_path / 'run'}"])
    state = torch.load(next((tmp_path / "run").rglob("*.ckpt")), weights_only=False)["state_dict"]
    weight = state["ansatz.decoder.positional.weight"]  # zero at the start
    assert weight.abs().min() > 0
