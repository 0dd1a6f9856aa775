import contextlib
import io
import sys

from envbuilder.smoke.launch import Listening


def test_the_last_word_is_heard_and_everything_goes_through() -> None:
    out = io.StringIO()
    listening = Listening(out, "the end")
    with contextlib.redirect_stdout(listening):
        print("step 1", file=sys.stdout, flush=True)
        assert not listening.heard.is_set()
        print("and this is the end of it")
    assert listening.heard.is_set()
    assert out.getvalue() == "step 1\nand this is the end of it\n"
