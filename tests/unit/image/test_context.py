"""What is copied into an image bears the same times everywhere, and other times when it is something else."""

from envbuilder.image.context import same_everywhere

MOMENT = 1757289600


def times(folder, **texts):
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
    same_everywhere(folder, MOMENT)
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_times_depend_on_the_content_alone(tmp_path):
    first = times(tmp_path / "first", a="one", b="two")
    assert first == times(tmp_path / "second", a="one", b="two")
    # The same size, other content: BuildKit would take a file of the same time to be the one it has.
    other = times(tmp_path / "other", a="one", b="owt")
    assert other["a"] == first["a"]
    assert other["b"] != first["b"]
    # Later than the moment of the image, so BuildKit puts that in its place, and by less than a second.
    assert all(MOMENT * 10**9 < moment < (MOMENT + 1) * 10**9 for moment in {**first, **other}.values())
    assert (tmp_path / "first").stat().st_mtime_ns == MOMENT * 10**9
