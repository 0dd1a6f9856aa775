"""The committed pages are those that the data makes."""

from envbuilder.data import builtin_root
from envbuilder.diagnose.pages import pages

FOLDER = builtin_root() / "docs" / "rules"


def test_the_pages_are_up_to_date() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    made = pages()
    differ = sorted(name for name in made.keys() | committed.keys() if made.get(name) != committed.get(name))
    assert not differ, f"run `make docs` and commit docs/rules: {differ[:5]}"


def test_every_page_has_both_languages_and_a_source() -> None:
    for name, text in pages().items():
        if name != "README.md":
            assert "## English" in text
            assert "## 中文" in text
            assert "## Sources" in text
            assert "[[" not in text.split("## Recognised by")[0] or "[[gpu]]" in text
