"""BuildKit's progress (``--progress=rawjson``) told on: steps as they start, their output, and what failed."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import deque
from collections.abc import Iterable
from typing import IO, Any

from envbuilder.image.steps import step_title
from envbuilder.report.progress import Progress

_NAME = re.compile(r"^\[[^]]*\] (.*)$", re.S)
# The step's whole text stands in its error; what people need of it is the end.
_ENDED = re.compile(r'^process ".*" did not complete successfully: (.*)$', re.S)
_EXPORTING = re.compile(r"^exporting to (docker|oci) image format$")
_TAIL_LINES = 60


class BuildKitProgress:
    """Reads the stream in a thread of its own. ``step`` is the title of the step that failed, when one did."""

    def __init__(self, stream: IO[bytes] | None, progress: Progress) -> None:
        assert stream is not None
        self.step = ""
        self._progress = progress
        self._started: set[str] = set()
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._by_step: dict[str, deque[str]] = {}
        self._failed = ""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the stream."""
        self._thread.join()

    def tail(self) -> str:
        """The last lines that the failed step wrote, or of all the output where no step failed.

        What BuildKit adds after them (an excerpt of the Dockerfile, the step's text once more) would hide them.
        """
        return "\n".join(self._by_step.get(self._failed) or self._lines)

    def _read(self, stream: Iterable[bytes]) -> None:
        block: list[str] = []
        for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            # buildx 0.13 spreads an event over indented lines, later ones write one a line.
            if block or line == "{":
                block.append(line)
                if line != "}":
                    continue
                line, block = "\n".join(block), []
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                event = None
            if isinstance(event, dict):
                self._event(event)
            else:
                # After the events of a failed build its error comes again for people, as text.
                self._note(line)

    def _event(self, event: dict[str, Any]) -> None:
        for vertex in event.get("vertexes") or ():
            self._vertex(vertex)
        for entry in event.get("logs") or ():
            for text in base64.b64decode(entry.get("data") or "").decode(errors="replace").splitlines():
                self._note(text)
                self._of(entry["vertex"]).append(text)

    def _of(self, digest: str) -> deque[str]:
        return self._by_step.setdefault(digest, deque(maxlen=_TAIL_LINES))

    def _note(self, line: str) -> None:
        if line.strip():
            self._progress.log(line)
            self._progress.item(line.strip())
            self._lines.append(line)

    def _vertex(self, vertex: dict[str, Any]) -> None:
        name = vertex.get("name", "")
        match = _NAME.match(name)
        title = step_title(match[1]) if match else None
        if vertex.get("started") and vertex["digest"] not in self._started:
            self._started.add(vertex["digest"])
            self._progress.log(name)
            if title and not vertex.get("cached"):
                self._progress.stage(title)
            elif _EXPORTING.match(name):
                self._progress.stage("take the image into Docker's store")
        if vertex.get("error") and not self._failed:
            self.step, self._failed = title or name, vertex["digest"]
            self._note(vertex["error"])
            ended = _ENDED.match(vertex["error"])
            self._of(self._failed).append(ended[1] if ended else vertex["error"])
