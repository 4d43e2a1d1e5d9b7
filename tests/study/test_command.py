"""The command line of studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_study import BASE, POSITIONAL, chain, scheme

from nnqs_lightning.study.command import main

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**changes: Any) -> str:
        study = {
            "axes": {
                "scheme": {"none": scheme(f"{POSITIONAL}.NoPositional"), "alibi": scheme(f"{POSITIONAL}.Alibi")},
                "system": {"h2": chain(2)},
            },
            "base": BASE,
            "compare": "scheme",
            "baseline": "none",
            "folder": str(tmp_path / "out"),
            "seeds": 1,
            **changes,
        }
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(study, sort_keys=False))
        return str(path)

    return write


def test_a_study_runs_goes_on_and_reports(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write()
    main(["--config", path, "--shard", "1/2"])
    assert "1 cells are still missing" in capsys.readouterr().out
    main(["--config", path])
    assert "2 cells, 1 to run" in capsys.readouterr().out
    main(["--config", path, "--seeds", "2"])
    assert "4 cells, 2 to run" in capsys.readouterr().out
    assert {"table.csv", "report.md", "ranks.png"} <= {file.name for file in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"baseline": "nobody"}, "baseline 'nobody'"),
        ({"base": {"modle": {}}}, "model, data, trainer"),
        ({"axes": {"scheme": {"none": "no_such_file.yaml"}}}, "no_such_file.yaml"),
        ({"axes": {"scheme": {"none": scheme("no.such.Scheme")}, "system": {"h2": chain(2)}}}, "no.such.Scheme"),
    ],
)
def test_bad_input_is_one_line_that_names_it(
    write: Write, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--config", write(**changes)])
    assert stopped.value.code == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("error: ")
    assert told in message
    assert "\n" not in message


def test_a_shard_out_of_range_is_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--config", write(), "--shard", "3/2"])
    assert "i/n" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("configs/studies/*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_study_parses(path: Path) -> None:
    from nnqs_lightning.study.command import check, parser
    from nnqs_lightning.study.design import Study

    parsed = parser().parse_args(["--config", str(path)])
    for key in ("config", "jobs", "shard"):
        parsed.pop(key)
    study = Study(**parsed.as_dict())
    check(study)
    assert len({cell.key for cell in study.cells()}) == len(study.cells())
