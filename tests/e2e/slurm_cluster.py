"""A real Slurm of two nodes on the loopback, from Debian's packages: munged, slurmctld and two slurmd of one machine.

It lies in a folder of its own and leaves the host's Slurm (if any) alone. Each node claims one card, which is
/dev/null: Slurm counts and lends it, and nothing computes on it.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time

NODES = ("first", "second")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
# Jobs run as this user of Debian's; the daemons as root.
USER = "nobody"


def install():
    if not shutil.which("slurmctld"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
            subprocess.run(["apt-get", "-q", *command], check=True, capture_output=True, env=environment)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def configuration(folder):
    controller, *ports = free_ports(3)
    host = socket.gethostname()
    nodes = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:1\n"
        for name, port in zip(NODES, ports, strict=True)
    )
    return f"""\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
GresTypes=gpu
{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder):
    """Run the cluster; SLURM_CONF leads to it, in the environment that this gives."""
    install()
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(configuration(folder))
    (folder / "gres.conf").write_text(f"NodeName={','.join(NODES)} Name=gpu File=/dev/null\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    own = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("pid-file", "log-file", "seed-file", "socket")]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *own],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", name] for name in NODES),
    ]
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((folder / f"{command[0]}.out").open("a"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
            stack.callback(process.wait, timeout=60)
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_for(lambda: (folder / "munge.socket").exists(), 60)
        stack.callback(take_back_all, environment)
        wait_for(lambda: ask(environment, "sinfo", "--noheader", "--format=%t %D").split() == ["idle", "2"], 120)
        yield environment


def take_back_all(environment):
    ask(environment, "scancel", f"--user={USER}")
    wait_for(lambda: not ask(environment, "squeue", "--noheader"), 60)


def ask(environment, *command):
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.5)
