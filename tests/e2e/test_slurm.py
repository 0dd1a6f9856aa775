"""The rendered job in a real Slurm of two nodes: both are proven, it trains only after that, and cancelling ends all.

Real: slurmctld, two slurmd, srun, the rendered script, envbuilder's own programs of the image, and Ray over both nodes.
Stand-ins: Apptainer (runs the command on the host), the suite (says what a file tells it to) and the trainer (asks Ray
for the cards of both nodes).
"""

import json
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import envbuilder
from envbuilder.cli.deploy import command
from tests.e2e.slurm_cluster import NODES, USER, ask, slurm, wait_for

pytestmark = pytest.mark.e2e
ROOT = Path(envbuilder.__file__).parent
PYTHON = "/usr/bin/python3"
IMAGE = "registry.lab/p40@sha256:" + "ab" * 32

APPTAINER = '''\
#!{python}
"""Stand-in for Apptainer: runs the command on this host, with the container's paths put back to the host's."""
import os, sys
given, environment, binds = sys.argv[2:], {{}}, {{}}
while given[0].startswith("--"):
    option = given.pop(0)
    if option not in ("--nv", "--containall", "--no-home"):
        value = given.pop(0)
        if option == "--bind":
            binds[value.split(":")[1]] = value.split(":")[0]
        elif option == "--env":
            environment.update([value.split("=", 1)])
        elif option not in ("--workdir", "--pwd"):
            sys.exit(f"the stand-in knows no {{option}}")
assert given.pop(0) == "docker://{image}"
for target, source in binds.items():
    given = [word.replace(f"={{target}}/", f"={{source}}/") if "=" in word else
             source + word[len(target):] if word.startswith(target + "/") else word for word in given]
# One machine plays both nodes: their names are not in its hosts file.
given = ["127.0.0.1" if before == "--head" else word for before, word in zip([""] + given, given)]
environment.update(PATH=os.environ["PATH"], PYTHONPATH="{site}", PYTHONDONTWRITEBYTECODE="1",
                   ENVBUILDER_HOST=os.environ["SLURMD_NODENAME"], RAY_enable_worker_prestart="0")
os.execve(given[0] if "/" in given[0] else "{python}", given, environment)
'''
SUITE = '''\
"""Stand-in for the suite: the verdict that a file of this node names."""
import json, os, pathlib, sys
node = os.environ["ENVBUILDER_HOST"]
verdict = pathlib.Path("{verdicts}", node).read_text()
print(json.dumps({{"command": "verify", "subject": "stand-in", "verdict": verdict, "summary": "as told", "checks": [],
                  "findings": [], "facts": {{"passport": {{"image": os.environ["ENVBUILDER_IMAGE"]}}}}}}))
sys.exit({{"yes": 0, "no": 1}}[verdict])
'''
TRAINER = '''\
"""Stand-in for the trainer: takes the cards of both nodes from Ray, writes down what it got, and waits if told to."""
import json, pathlib, sys, time
import ray
folder = next(word.partition("=")[2] for word in sys.argv if word.startswith("trainer.default_local_dir="))
ray.init(log_to_driver=False)
@ray.remote(num_gpus=1, num_cpus=0)
class Holder:
    def node(self):
        return ray.get_runtime_context().get_node_id()
holders = [Holder.remote() for _ in range(2)]
told = {"nodes": ray.get([h.node.remote() for h in holders]), "overrides": sys.argv[1:]}
results = pathlib.Path(folder).parent
(results / "trained.json").write_text(json.dumps(told))
while (results / "hold").exists():
    time.sleep(0.5)
'''


@pytest.fixture(scope="module")
def site():
    """What the image's Python would find: Ray by the lock of p40-debian, and envbuilder with the two stand-ins.

    pytest's own folders are root's alone; the job's user has to reach this one.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-slurm-", ignore_cleanup_errors=True) as name:
        yield fill(Path(name))


def fill(folder):
    folder.chmod(0o755)
    lock = (ROOT.parent / "locks/p40-debian.requirements.txt").read_text()
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(line.split(" --hash")[0] + "\n" for line in lock.splitlines() if "==" in line))
    where = ["--python", PYTHON, "--target", str(folder / "site"), "--constraints", str(constraints)]
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", "--quiet", *where, "ray"], check=True)
    copied = folder / "site/envbuilder"
    for part in ("smoke", "report"):
        shutil.copytree(ROOT / part, copied / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("__init__.py", "errors.py"):
        shutil.copy(ROOT / part, copied / part)
    (copied / "smoke/__main__.py").write_text(SUITE.format(verdicts=folder / "verdicts"))
    (copied / "smoke/launch.py").write_text(TRAINER)
    programs = folder / "runs-on-the-host-instead-of-a-container"
    programs.mkdir()
    (programs / "apptainer").write_text(APPTAINER.format(python=PYTHON, site=folder / "site", image=IMAGE))
    (programs / "apptainer").chmod(0o755)
    (folder / "verdicts").mkdir()
    return folder


@pytest.fixture(scope="module")
def cluster(site):
    folder = site / "slurm"
    folder.mkdir()
    with slurm(folder) as environment:
        programs = site / "runs-on-the-host-instead-of-a-container"
        yield {**environment, "PATH": f"{programs}:{environment['PATH']}"}


@pytest.fixture
def submit(cluster, site, tmp_path):
    """Render a job for two nodes with folders whose names hold what hurts in a shell, submit it; (id, results)."""
    work = site / f"work-{tmp_path.name}"
    folders = {name: work / f"{name}; it's $HOME" for name in ("model", "data", "results")}
    for folder in folders.values():
        folder.mkdir(parents=True)
        shutil.chown(folder, USER)
    shutil.chown(work, USER)
    given = [word for name, folder in folders.items() for word in (f"--{name}", str(folder))]
    done = CliRunner().invoke(
        command,
        ["slurm", "p40-debian", "--image", IMAGE, "--nodes", "2", *given, "--out", str(work)],
        catch_exceptions=False,
    )
    assert "sbatch p40-debian.sbatch" in done.output

    def go(**verdicts):
        for node in NODES:
            (site / "verdicts" / node).write_text(verdicts.get(node, "yes"))
        identity = pwd.getpwnam(USER)
        told = subprocess.run(
            ["sbatch", "--parsable", "p40-debian.sbatch"], cwd=work, env=cluster,
            user=identity.pw_uid, group=identity.pw_gid, extra_groups=[], capture_output=True, text=True, check=True,
        )  # fmt: skip
        return told.stdout.strip(), folders["results"]

    return go


def state(cluster, job):
    words = dict(word.split("=", 1) for word in ask(cluster, "scontrol", "show", "job", job).split() if "=" in word)
    return words["JobState"], words.get("ExitCode", "")


def ended(cluster, job, seconds=300):
    wait_for(lambda: state(cluster, job)[0] not in ("PENDING", "RUNNING", "COMPLETING"), seconds)
    return state(cluster, job)


def log_of(results, job):
    return (results.parent / f"slurm-{job}.out").read_text()


def left_over(site):
    """Processes that run anything of the image."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (
                    str(site / "site") in (folder / "environ").read_text()
                    or str(site / "site") in (folder / "cmdline").read_text()
                ):
                    found.append(folder.name)
            except OSError:
                continue  # it has ended meanwhile
    return found


def test_both_nodes_are_proven_then_both_train(cluster, site, submit):
    job, results = submit()
    assert ended(cluster, job) == ("COMPLETED", "0:0"), log_of(results, job)
    reports = sorted((results / "verify").glob("*.json"))
    assert [path.name for path in reports] == ["first-gpu0.json", "second-gpu0.json"]
    assert all(json.loads(path.read_text())["facts"]["passport"]["image"] == IMAGE for path in reports)
    trained = results / "trained.json"
    told = json.loads(trained.read_text())
    assert len(set(told["nodes"])) == 2
    assert "trainer.nnodes=2" in told["overrides"]
    assert all(path.stat().st_mtime < trained.stat().st_mtime for path in reports)
    wait_for(lambda: not left_over(site), 60)


def test_one_no_and_nothing_is_trained(cluster, site, submit):
    job, results = submit(second="no")
    assert ended(cluster, job) == ("FAILED", "1:0"), log_of(results, job)
    assert "second GPU 0: no" in log_of(results, job)
    assert "nothing is trained" in log_of(results, job)
    assert len(list((results / "verify").glob("*.json"))) == 2
    assert not (results / "trained.json").exists()


@pytest.mark.parametrize("how", ["requeue", "cancel"])
def test_taking_the_job_back_ends_everything(cluster, site, submit, how):
    job, results = submit_held(submit)
    wait_for((results / "trained.json").exists, 300)
    assert left_over(site)
    ask(cluster, *(["scontrol", "requeue", job] if how == "requeue" else ["scancel", job]))
    wait_for(lambda: not left_over(site), 90)
    assert state(cluster, job)[0] in ("PENDING", "CANCELLED", "COMPLETING")
    ask(cluster, "scancel", job)
    (results / "hold").unlink()


def submit_held(submit):
    job, results = submit()
    (results / "hold").touch()
    return job, results


def test_a_host_without_a_runner_says_so(cluster, site, submit):
    programs = site / "runs-on-the-host-instead-of-a-container/apptainer"
    programs.rename(programs.with_name("away"))
    try:
        job, results = submit()
        assert ended(cluster, job)[0] == "FAILED"
        assert "neither pyxis nor Apptainer" in log_of(results, job)
    finally:
        programs.with_name("away").rename(programs)
