"""A script that would fail in the queue, or hang in it, is refused before it gets there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nnqs_lightning.errors import UserError
from nnqs_lightning.training import submit
from nnqs_lightning.training.checkpoint_store import STATE, CheckpointStore

SCRIPTS = sorted((Path(__file__).parents[2] / "slurm").glob("*.sbatch"))
BODY = Path(submit.__file__).with_name("job_body.sh").read_text()


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    submit.main(["--dry-run", "--skip-config-check", *arguments])
    return capsys.readouterr().out


def refusal(*arguments: str) -> str:
    with pytest.raises(UserError) as refused:
        submit.main(["--dry-run", "--skip-config-check", *arguments])
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_header_asks_for_what_was_asked(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    text = dry_run(
        capsys, "--nodes", "2", "--gpus-per-node", "4", "--time", "4:00:00", "--after", "17", "--config", "h2.yaml"
    )
    header = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    for option in (
        "--nodes=2",
        "--ntasks-per-node=4",
        "--gpus-per-node=4",
        "--time=4:00:00",
        "--dependency=afterany:17",
        "--signal=SIGUSR1@120",
        "--requeue",
        "--open-mode=append",
        f"--output={tmp_path}/runs/nnqs/slurm-%j.log",
    ):
        assert f"#SBATCH {option}" in header
    assert "defaults=(--trainer.accelerator cuda --config h2.yaml)" in text
    assert "srun --kill-on-bad-exit=1" in text
    assert not (tmp_path / "runs").exists()


def test_arguments_survive_the_shell(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    text = dry_run(capsys, "--model.system", "{class_path: X, init_args: {name: 'a b'}}")
    (tmp_path / "script").write_text(text.partition("# ---- From")[0] + 'printf "%s\\n" "${defaults[@]}"\n')
    echoed = subprocess.run(["bash", str(tmp_path / "script")], capture_output=True, text=True, check=True).stdout
    assert echoed.splitlines()[-1] == "{class_path: X, init_args: {name: 'a b'}}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--job-name", "bash"], "neither bash nor interactive"),
        (["--job-name", "my run"], "--job-name is 'my run'"),
        (["--nodes", "0"], "--nodes is 0"),
        (["--gpus-per-node", "4", "--trainer.devices", "2"], "--trainer.devices is 2, the job has 4"),
        (["--nodes", "2", "--trainer.num_nodes=3"], "--trainer.num_nodes is 3, the job has 2"),
        (["--gpus-per-node", "4", "--tasks-per-node", "2"], "a rank works on one GPU"),
        (["--lead", "30"], "--lead is 30"),
        (["--time", "1:00", "--lead", "60"], "less than the limit"),
        (["--time", "soon"], "--time is soon"),
        (["--sweep", "nowhere.txt", "--array", "1-2"], "--sweep nowhere.txt"),
        (["--env", "nowhere.sh"], "--env nowhere.sh does not exist"),
    ],
)
def test_what_would_fail_is_refused_with_the_option_to_change(arguments: list[str], message: str) -> None:
    assert message in refusal(*arguments)


def test_the_warning_must_come_earlier_than_a_save_takes(tmp_path: Path, capsys) -> None:
    store = CheckpointStore(tmp_path)
    writing = store.begin(40)
    (writing / STATE).write_bytes(b"state")
    store.publish(
        writing,
        step=40,
        energy=None,
        reason="test",
        save_seconds=100.0,
        step_seconds=20.0,
        world_size=1,
        strategy="",
        versions={},
    )
    assert "set it to 280 or more" in refusal("--run-dir", str(tmp_path))
    assert "continues at step 40" in dry_run(capsys, "--run-dir", str(tmp_path), "--lead", "280")


def test_without_sbatch_it_says_where_to_go(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="sbatch is not on PATH"):
        submit.main(["--skip-config-check", "--run-dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("time", "seconds"), [("90", 5400), ("2:30", 150), ("4:00:00", 14400), ("2-00", 172800), ("1-12:30", 131400)]
)
def test_time_limits_mean_what_sbatch_says(time: str, seconds: int) -> None:
    assert submit._seconds(time) == seconds


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_has_the_body_that_submit_writes(path: Path) -> None:
    assert path.read_text().endswith(BODY), f"{path} differs from {submit.__file__}'s job_body.sh"


def test_a_login_node_does_not_import_torch() -> None:
    code = (
        "import sys; from nnqs_lightning.training import submit; submit.main(['--dry-run', '--skip-config-check']);"
        "sys.exit(not {'torch', 'lightning'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0
