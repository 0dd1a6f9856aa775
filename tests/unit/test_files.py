"""What writing a file leaves as it was."""

import os
import socket

import pytest

from envbuilder.errors import HostError
from envbuilder.files import replacing, write_text


def test_what_is_no_file_is_never_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    before = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
    for name in before:
        with pytest.raises(HostError, match="a device, a pipe or a socket, not a file"):
            write_text(tmp_path / name, "text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(HostError, match="Is a directory"):
        write_text(tmp_path / "folder", "text")
    (tmp_path / "folder").rmdir()
    assert {path.name: path.lstat().st_mode for path in tmp_path.iterdir()} == before


def test_a_link_stays_one_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere/file")
    for text in ("first", "second"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "elsewhere" / "file").read_text() == text


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "file").write_text("before")
    with pytest.raises(TypeError), replacing(tmp_path / "file") as stream:
        stream.writelines([b"half", None])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "before")]
