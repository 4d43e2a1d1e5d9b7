"""Each shipped fragment builds its scheme, and each scheme ships a fragment."""

from __future__ import annotations

from inspect import isabstract
from pathlib import Path

import jsonargparse
import pytest
import yaml

from nnqs_lightning.ansatz import TransformerAnsatz
from nnqs_lightning.ansatz.base import AnsatzFactory
from nnqs_lightning.nn import positional
from nnqs_lightning.nn.positional import PositionalScheme

FOLDER = Path(__file__).parents[2] / "configs" / "position"
FRAGMENTS = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.stem)
def test_fragment_builds_its_scheme(fragment, make_integrals):
    parser = jsonargparse.ArgumentParser(exit_on_error=False, parser_mode="omegaconf")
    parser.add_argument("--model.ansatz", type=AnsatzFactory, default=TransformerAnsatz)
    parser.add_argument("--config", action="config")
    factory = parser.instantiate(parser.parse_args([f"--config={fragment}"])).model.ansatz
    ansatz = factory(make_integrals(6, 2, 2))
    wanted = yaml.safe_load(fragment.read_text())["model"]["ansatz"]["init_args"]["positional"]["class_path"]
    assert type(ansatz.decoder.positional).__name__ == wanted.rsplit(".", 1)[1]


def test_every_scheme_has_a_fragment():
    text = "".join(path.read_text() for path in FRAGMENTS)
    classes = {item for item in vars(positional).values() if isinstance(item, type)} - {PositionalScheme}
    schemes = {cls for cls in classes if issubclass(cls, PositionalScheme) and not isabstract(cls)}
    names = {cls.__name__ for cls in schemes}
    assert {name for name in names if f"nnqs_lightning.nn.positional.{name}\n" not in text} == set()
