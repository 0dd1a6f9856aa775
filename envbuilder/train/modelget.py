"""Fetching a pinned model into the cache, verified, and showing it as a folder."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from envbuilder.errors import InputError, Place
from envbuilder.fetch.cache import Item, check_space, is_there, path_of
from envbuilder.fetch.fetching import Cached
from envbuilder.fetch.view import folder_of
from envbuilder.report.progress import Progress
from envbuilder.train.known_models import KnownModel

HUB = "https://huggingface.co"
# The variable by which the hub's own client is pointed at a mirror.
ENDPOINT = "HF_ENDPOINT"


def get_model(model: KnownModel, out: Path, progress: Progress) -> Path:
    """Have every file of ``model`` and make ``out/NAME`` the folder of them; that folder.

    Files that are in the cache are not asked for again. Raises SourceError, IntegrityError or HostError as a
    download does, and InputError for an endpoint that is no address.
    """
    endpoint = os.environ.get(ENDPOINT, HUB).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise InputError(
            f"{endpoint!r} is no address of a model hub",
            place=Place(field=ENDPOINT),
            cure=f"Set {ENDPOINT} to the address of a mirror, such as https://host, or unset it.",
        )
    items = [Item(f.path, f.path, f"sha256:{f.sha256}", f.size) for f in model.file]
    missing = [item for item in items if not is_there(item)]
    if missing:
        from envbuilder.fetch.download import Location
        from envbuilder.fetch.transfers import fetch_items
        from envbuilder.fetch.transport import new_session

        check_space(missing)
        session = new_session()
        gone = f"Set {ENDPOINT} to a mirror that has {model.repository} at revision {model.revision}."
        locations = {
            item.hex: Location(f"{endpoint}/{model.repository}/resolve/{model.revision}/{item.filename}", session, gone)
            for item in missing
        }
        fetch_items(missing, locations, progress)
    name = model.repository.rsplit("/", 1)[1]
    return folder_of((Cached(i.filename, path_of(i), i.size or 0) for i in items), out / name)
