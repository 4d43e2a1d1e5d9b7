"""The scheme printed in docs/positions.md works as it stands, from the configuration alone."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import jsonargparse
import torch

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.base import AnsatzFactory

PAGE = Path(__file__).parents[2] / "docs" / "positions.md"


def test_the_documented_scheme_plugs_in_by_its_class_path(tmp_path, monkeypatch, make_integrals):
    source = re.search(r"((?:    .*\n|\n)+)\Z", PAGE.read_text()).group(1)
    (tmp_path / "own_scheme.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_scheme", raising=False)
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
