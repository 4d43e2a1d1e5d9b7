"""A real SLURM on this host: one controller, several node daemons, no systemd, no cgroups; needs root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
HOSTS_MARK = "# one-host SLURM of the tests"

SLURM_CONF = """\
ClusterName=onehost
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MinJobAge=3600
KillWait=5
SlurmdTimeout=10
GresTypes=gpu
NodeName=n[1-6] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=64 RealMemory=64000 Gres=gpu:4
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
PartitionName=low Nodes=n[3-4] MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=n[3-4] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=fragile Nodes=n[5-6] MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why there can be no SLURM here, None if there can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no {', '.join(missing)} here: apt-get install --no-install-recommends slurm-wlm munge"
    return None if os.geteuid() == 0 else "a one-host SLURM needs root"


class OneHostCluster:
    """Starts in a few seconds; :meth:`stop` ends every daemon and job.

    Args:
        folder: configuration, logs and state; a short path, since sockets live in it.
        work_dir: where commands run, and so where jobs are submitted from.
        port: first of seven free TCP ports.
    """

    nodes = tuple(f"n{number}" for number in range(1, 7))

    def __init__(self, folder: Path, work_dir: Path, port: int) -> None:
        self.folder, self.work_dir, self.port = folder, work_dir, port
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        host = socket.gethostname().split(".")[0]
        self._make_resolvable(host, *self.nodes)
        first = self.port + 1
        (self.folder / "slurm.conf").write_text(
            SLURM_CONF.format(host=host, folder=self.folder, port=self.port, first=first, last=first + 5)
        )
        # Fake GPUs: gres wants distinct character devices.
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/random\n")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        options = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        self.run("munged", "--force", *(f"--{name}={self.folder / file}" for name, file in options.items()),
                 f"--seed-file={self.folder / 'munge.seed'}")  # fmt: skip
        self.run("slurmctld", "-c")
        for node in self.nodes:
            self.start_node(node)
        self.wait_until(lambda: set(self.run("sinfo", "-h", "-o", "%t").split()) == {"idle"}, 30)

    def stop(self) -> None:
        for job in self.run("squeue", "-h", "-o", "%A").split():
            self.run("scancel", "--signal=KILL", "--full", job, check=False)
            self.run("scancel", job, check=False)
        self.wait_until(lambda: not self.run("squeue", "-h"), 30)
        for name in (*(f"slurmd-{node}" for node in self.nodes), "slurmctld", "munged"):
            self._kill(name, signal.SIGTERM)
        kept = [line for line in Path("/etc/hosts").read_text().splitlines(keepends=True) if HOSTS_MARK not in line]
        Path("/etc/hosts").write_text("".join(kept))

    def start_node(self, node: str) -> None:
        self.run("slurmd", "-N", node)

    def kill_node_daemon(self, node: str) -> None:
        self._kill(f"slurmd-{node}", signal.SIGKILL)

    def _kill(self, name: str, number: signal.Signals) -> None:
        try:
            os.kill(int((self.folder / f"{name}.pid").read_text()), number)
        except (FileNotFoundError, ProcessLookupError):
            return

    def run(self, *command: str, check: bool = True, **environment: str) -> str:
        """Standard output of a command that finds this cluster; errors are raised with what it wrote."""
        done = subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=self.work_dir,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def submit(self, *arguments: str, **environment: str) -> str:
        """Job id of ``sbatch arguments``."""
        return self.run("sbatch", "--parsable", *arguments, **environment).strip().split(";")[0]

    def job(self, job: str) -> dict[str, str]:
        """What scontrol knows about a job."""
        fields = self.run("scontrol", "show", "job", "-o", job).split()
        return dict(field.partition("=")[::2] for field in fields if "=" in field)

    def is_over(self, job: str) -> bool:
        return self.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED")

    @staticmethod
    def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.2)
        return False

    @staticmethod
    def _make_resolvable(*names: str) -> None:
        for name in names:
            try:
                socket.gethostbyname(name)
            except OSError:
                with Path("/etc/hosts").open("a") as hosts:
                    hosts.write(f"127.0.0.1 {name} {HOSTS_MARK}\n")
