"""As whom a container writes."""

import os

import pytest

from envbuilder.errors import HostError
from envbuilder.image import ownership


@pytest.fixture
def folder(tmp_path):
    """Folders of given owners; making them takes root, which the test environment is."""

    def make(name, owner):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, owner, owner)
        return tmp_path / name

    return make


def test_the_owner_writes_and_root_does_not(folder):
    assert ownership.writer([]) is None
    assert ownership.writer([folder("mine", 1234)]) == (1234, 1234)
    given = folder("roots", 0)
    assert ownership.writer([given]) == ownership.IMAGE_USER
    assert given.stat().st_uid == ownership.IMAGE_USER[0]


def test_folders_of_several_owners_are_refused(folder):
    with pytest.raises(HostError, match="have different owners"):
        ownership.writer([folder("one", 1), folder("two", 2)])


def test_without_root_a_folder_of_roots_cannot_be_given_away(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(HostError, match="the folder is root's, and you are not root"):
        ownership.writer([folder("roots", 0)])


def test_rootless_the_invoking_user_is_root_inside_and_no_other_is(monkeypatch):
    assert ownership.inside((1234, 1234)) == (1234, 1234)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert ownership.inside((1234, 1234)) == (0, 0)
    assert ownership.inside((99, 99)) == (99, 99)
