"""A run in the image: what the engine is asked for, what its lines say, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

from envbuilder.image.engine import RunRequest
from envbuilder.train.outfolder import OutFolder
from envbuilder.train.preflight import Prepared
from envbuilder.train.settings import Paths, Wanted

SCRIPT = "/run/envbuilder/train.sh"
# Batches go through Ray's object store, which lies in shared memory.
_SHM_MIB = 2048


def command_of() -> tuple[str, ...]:
    """What runs in the container: the script, both its streams as one, in the order they were written."""
    return ("sh", "-c", f"exec sh {SCRIPT} 2>&1")


def request_for(wanted: Wanted, done: Prepared, out: OutFolder, image: str, hosts: Path) -> RunRequest:
    """What the engine runs: the script, over the user's files. ``hosts`` is a file naming localhost."""
    assert done.data is not None
    inside = Paths()
    data = {done.data.train: inside.train}
    if done.data.validation != done.data.train:
        data[done.data.validation] = str(Path(inside.train).with_name(done.data.validation.name))
    return RunRequest(
        image=image,
        command=command_of(),
        gpu=(done.card.uuid or str(done.card.index)) if done.card else None,
        mounts={
            out.script.resolve(): SCRIPT,
            # A container without network may have no hosts file, and Ray looks up `localhost`.
            hosts: "/etc/hosts",
            # File by file: in the hub's own cache they are links to somewhere else.
            **{
                file.resolve(): f"{inside.model}/{file.name}"
                for file in sorted(wanted.model.iterdir())
                if file.is_file()
            },
            **{path.resolve(): target for path, target in data.items()},
            **({wanted.reward.resolve(): inside.reward} if wanted.reward else {}),
        },
        writable={out.checkpoints.resolve(): inside.checkpoints, out.samples.resolve(): inside.samples},
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        shm_mib=_SHM_MIB,
    )
