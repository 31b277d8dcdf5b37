"""A real Slurm of one machine, on loopback, for sweeps and for processes that train together.

It needs Debian's packages slurmctld, slurmd and munge: installed, or unpacked (`dpkg -x`, with those they depend on)
into a folder that $QUARTERTURN_SLURM names. Without them these tests are skipped.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quarterturn_lab.runs.run_directory import records, summary

pytestmark = pytest.mark.slow

ROOT = Path(os.environ.get("QUARTERTURN_SLURM", "/"))
PATH = f"{ROOT / 'usr/bin'}:{ROOT / 'usr/sbin'}:{os.environ['PATH']}"
LIBRARIES = [ROOT / "usr/lib/x86_64-linux-gnu", ROOT / "usr/lib/x86_64-linux-gnu/slurm-wlm"]
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
PluginDir={plugins}
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
OPTIONS = "--train-size 500 --checkpoint-seconds 5"


def program(*names: str) -> str:
    found = next((path for name in names if (path := shutil.which(name, path=PATH))), None)
    if found is None:
        pytest.skip(f"no {names[0]}: Slurm is not installed here")
    return found


def free_ports() -> list[int]:
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which commands find a running Slurm."""
    controller, daemon = program("slurmctld", "slurmctld-wlm"), program("slurmd", "slurmd-wlm")
    steps, munged = program("slurmstepd", "slurmstepd-wlm"), program("munged")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    about = {"host": socket.gethostname(), "user": Path.home().owner(), "folder": folder, "ports": free_ports()}
    (folder / "slurm.conf").write_text(CONFIG.format(**about, plugins=LIBRARIES[1]))
    variables = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    if Path("/") != ROOT:
        variables["LD_LIBRARY_PATH"] = ":".join(map(str, LIBRARIES))
    variables["PYTHONPATH"] = str(Path(sys.modules["quarterturn_lab"].__path__[0]).parent)
    files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
    own = [f"--{name}={folder / file}" for name, file in {**files, "seed-file": "seed"}.items()]
    processes = []
    try:
        for command in (
            [munged, "--force", "--foreground", *own],
            [controller, "-D", "-c"],
            [daemon, "-D", "-d", steps],
        ):
            with (folder / f"{len(processes)}.out").open("w") as log:
                processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
            time.sleep(1)
        until(lambda: "idle" in said(["sinfo"], variables), 30)
        yield variables
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def said(command: list[str], variables: dict[str, str]) -> str:
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False).stdout


def until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_sweep_of_jobs(slurm: dict[str, str], tmp_path: Path) -> None:
    """The driver is killed and started again; a job is warned, saves, and goes back into the queue."""
    rows = "table synthetic --runs 2 --rows baseline --epochs 40 --executor slurm --slurm partition=debug"
    command = [sys.executable, "-m", "quarterturn_lab", *rows.split(), *OPTIONS.split(), "--runs-dir", str(tmp_path)]
    driver = subprocess.Popen(command, env=slurm, stdout=subprocess.DEVNULL)
    until(lambda: len(list(tmp_path.rglob("progress.json"))) == 2, 200)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    jobs = {path.parent.name: path.read_text() for path in tmp_path.rglob("job.txt")}
    assert len(set(jobs.values())) == 2
    driver = subprocess.Popen(command, env=slurm, stdout=subprocess.PIPE, text=True)
    said(["scancel", "--signal=USR1", jobs["seed0"]], slurm)
    output, _ = driver.communicate(timeout=400)
    assert driver.returncode == 0, output
    assert len(list(tmp_path.rglob("summary.json"))) == 2
    logs = {path.name: path.read_text() for path in (tmp_path / "jobs").glob("*/*_log.out")}
    assert {name.removesuffix("_0_log.out") for name in logs} == set(jobs.values())  # nothing was submitted again
    assert "Requeued job" in logs[f"{jobs['seed0']}_0_log.out"]
    assert said(["squeue", "--noheader"], slurm) == ""


def test_tasks_of_srun_train_together(slurm: dict[str, str], tmp_path: Path) -> None:
    train = f"train synthetic/residual-c4 --epochs 1 --optimizer sgd --lr 0.01 {OPTIONS} --runs-dir".split()
    found = {}
    for count in (1, 2):
        start = ["srun", "--ntasks-per-node", str(count), "--ntasks", str(count), "--job-name", "test", sys.executable]
        folder = tmp_path / str(count)
        subprocess.run([*start, "-m", "quarterturn_lab", *train, str(folder)], env=slurm, check=True, timeout=300)
        (directory,) = (path.parent for path in folder.rglob("summary.json"))
        found[count] = [records(directory)[0]["train_loss"], summary(directory)["test"]["cross_entropy"]]
    assert found[2] == pytest.approx(found[1], rel=1e-4)
