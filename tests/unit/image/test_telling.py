"""What a build tells: titles of steps, BuildKit's events, causes and cures of failures."""

import base64
import io
import json

import pytest

from envbuilder.errors import BuildError, IntegrityError
from envbuilder.image.buildkit_progress import BuildKitProgress
from envbuilder.image.failures import build_error
from envbuilder.image.steps import step_title
from envbuilder.report.progress import Silent


class Heard(Silent):
    def __init__(self):
        self.stages, self.lines = [], []

    def stage(self, title):
        self.stages.append(title)

    def log(self, line):
        self.lines.append(line)


@pytest.mark.parametrize(
    ("instruction", "title"),
    [
        (
            "RUN --mount=type=bind,from=wheels,target=/mnt : 'CUDA libraries, 13 packages @ 48ab' && x",
            "CUDA libraries, 13 packages",
        ),
        ("/bin/sh -c #(nop) ADD file:" + "a" * 64 + " in / ", "Debian base"),
        ("ADD rootfs.tar / # buildkit", "Debian base"),
        ("COPY stack.json /opt/envbuilder/stack.json", "copy /opt/envbuilder/stack.json"),
        ("RUN true", "RUN true"),
        ("RUN " + "x" * 100, "RUN " + "x" * 67 + "…"),
        ("USER trainer", None),
        ("FROM system AS python", None),
    ],
)
def test_a_step_has_a_title_where_something_happens(instruction, title):
    assert step_title(instruction) == title


@pytest.mark.parametrize("indent", [None, 1], ids=["an event a line", "an event over lines"])
def test_buildkit_events_are_told_on(indent):
    name = "[python 3/9] RUN : 'libraries, 4 packages @ 12' && false"
    started, output = {"digest": "d1", "name": name, "started": "t"}, base64.b64encode(b"the end is near\n").decode()
    events = [
        {"vertexes": [{"digest": "d0", "name": "[system 1/2] ADD rootfs.tar /", "started": "t", "cached": True}]},
        {"vertexes": [started]},
        {"logs": [{"vertex": "d1", "data": output}]},
        {"vertexes": [{**started, "error": "exit code: 1"}]},
    ]
    text = "".join(json.dumps(event, indent=indent) + "\n" for event in events) + "ERROR: failed to solve\n"
    heard = Heard()
    listener = BuildKitProgress(io.BytesIO(text.encode()), heard)
    listener.join()
    assert heard.stages == ["libraries, 4 packages"]
    assert listener.step == "libraries, 4 packages"
    assert listener.tail().splitlines() == ["the end is near", "exit code: 1"]


def test_what_a_failed_step_said_is_not_hidden_by_what_buildkit_adds():
    def said(vertex, text):
        return {"logs": [{"vertex": vertex, "data": base64.b64encode(text.encode()).decode()}]}

    command = "/bin/sh -c : 'compilers fit PyTorch'; " + "long " * 40
    failed = {"digest": "d1", "name": f"[build 6/13] RUN {command}", "started": "t"}
    events = [
        {"vertexes": [failed, {"digest": "d2", "name": "[apex 1/1] ADD x /", "started": "t"}]},
        said("d1", "error: torch was built for CUDA 12.4, nvcc is 11.8\ndo: lock another\n"),
        said("d2", "From https://github.com/NVIDIA/apex\n"),
        {"vertexes": [{**failed, "error": f'process "{command}" did not complete successfully: exit code: 1'}]},
        {"vertexes": [{"digest": "d2", "name": "[apex 1/1] ADD x /", "error": "context canceled"}]},
    ]
    excerpt = [f"  {n} | >>> RUN" for n in range(40)]
    text = "\n".join([*map(json.dumps, events), "Dockerfile:46", *excerpt, "ERROR: failed to solve"])
    heard = Heard()
    listener = BuildKitProgress(io.BytesIO(text.encode()), heard)
    listener.join()
    assert listener.step == "compilers fit PyTorch"
    assert listener.tail().splitlines() == [
        "error: torch was built for CUDA 12.4, nvcc is 11.8",
        "do: lock another",
        "exit code: 1",
    ]
    assert "ERROR: failed to solve" in heard.lines, "the log has all of it"


def test_without_a_failed_step_all_is_told():
    listener = BuildKitProgress(io.BytesIO(b"ERROR: failed to read layout\n"), Heard())
    listener.join()
    assert (listener.step, listener.tail()) == ("", "ERROR: failed to read layout")


@pytest.mark.parametrize(
    ("output", "kind", "cure"),
    [
        ("dd: error writing '/x': No space left on device", BuildError, "The disk is full"),
        ("  × Hash mismatch for `idna==3.10`", IntegrityError, "A package's bytes are not those of the lock"),
        ("SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", BuildError, "A proxy with its own certificate"),
        ("signal: killed", BuildError, "The kernel ended the step"),
        ("something nobody has seen", BuildError, None),
    ],
)
def test_a_failure_has_its_step_its_last_lines_and_a_cure_where_one_is_known(output, kind, cure):
    error = build_error("libraries", "before\n" + output)
    assert type(error) is kind
    assert error.message == "the build failed at: libraries"
    assert error.detail.splitlines() == ["before", output]
    assert (error.cure or "").startswith(cure) if cure else error.cure is None
