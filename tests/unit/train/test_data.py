"""The data command: every layout people have, broken rows, lengths, and nothing half-written."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.cli import run
from envbuilder.errors import InputError
from envbuilder.report.progress import Silent
from envbuilder.train.convert import Options, convert
from envbuilder.train.lengths import LengthStatistics, PromptTokenizer
from envbuilder.train.mapping import load_mapping
from envbuilder.train.rows import BrokenRow, Row, find_splits, read_rows

GSM8K = Path(__file__).parents[2] / "data" / "gsm8k" / "test.jsonl"
ROWS = [json.loads(line) for line in GSM8K.read_text().splitlines()]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
)


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    """A whitespace tokenizer: a stand-in for the plumbing, its counts mean nothing."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({w for r in ROWS for w in r["question"].split()})
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, **{w: i + 1 for i, w in enumerate(words)}}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "</s>"}))
    return folder


def test_gsm8k_becomes_what_verl_reads(tmp_path: Path) -> None:
    [result] = convert(GSM8K, tmp_path, load_mapping("gsm8k"), Options(), None, Silent())
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    assert result.rows == len(rows) == 40
    first = rows[0]
    assert first["data_source"] == "openai/gsm8k"
    assert first["reward_model"] == {"style": "rule", "ground_truth": "18"}
    assert [m["role"] for m in first["prompt"]] == ["user"]
    assert first["prompt"][0]["content"].startswith("Janet")
    assert first["prompt"][0]["content"].endswith('"####".')
    assert first["extra_info"]["index"] == 0
    assert first["extra_info"]["split"] == "test"


def test_a_large_file_is_told_of_as_it_is_read_and_has_few_row_groups(tmp_path: Path) -> None:
    class Heard(Silent):
        done: list[int] = []  # noqa: RUF012  # one listener lives as long as the test

        def advance(self, done: int, total: int | None = None) -> None:
            assert total is not None
            assert done <= total
            self.done.append(done)

    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps(ROWS[i % len(ROWS)]) + "\n" for i in range(5000)))
    [result] = convert(source, tmp_path / "out", load_mapping("gsm8k"), Options(), None, Heard())
    assert result.rows == pq.read_table(tmp_path / "out" / "train.parquet").num_rows == 5000
    assert len(Heard.done) >= 4
    assert Heard.done == sorted(Heard.done)
    assert Heard.done[-1] == source.stat().st_size
    assert pq.ParquetFile(tmp_path / "out" / "train.parquet").num_row_groups == 1


@pytest.mark.parametrize("template", ["${question", "it costs $5", "$ {question}"])
def test_a_dollar_sign_that_names_no_field_is_refused_in_the_mapping(template: str, tmp_path: Path) -> None:
    mapping = tmp_path / "m.toml"
    text = f'schema = 1\ndata_source = "x"\nprompt = "{template}"\n[ground_truth]\nfield = "answer"\n'
    mapping.write_text(text)
    with pytest.raises(InputError, match=r"written \$\$"):
        load_mapping(str(mapping))


def test_an_array_on_one_line_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS))
    with pytest.raises(InputError, match="one JSON array"):
        list(read_rows(tmp_path / "a.jsonl"))


def layouts(root: Path) -> list[Path]:
    """The same rows in every layout that is read."""
    table = pa.Table.from_pylist(ROWS)
    jsonl, parquet, hub, arrow = (root / n for n in ("jsonl", "parquet", "hub", "arrow"))
    for folder in (jsonl, parquet, hub / "main", arrow / "test"):
        folder.mkdir(parents=True)
    (jsonl / "test.jsonl").write_text(GSM8K.read_text())
    pq.write_table(table, parquet / "test.parquet")
    pq.write_table(table.slice(0, 25), hub / "main" / "test-00000-of-00002.parquet")
    pq.write_table(table.slice(25), hub / "main" / "test-00001-of-00002.parquet")
    with pa.ipc.new_stream(str(arrow / "test" / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (arrow / "test" / "state.json").write_text("{}")
    (arrow / "test" / "dataset_info.json").write_text("{}")
    (arrow / "dataset_dict.json").write_text('{"splits": ["test"]}')
    return [jsonl, parquet, hub, arrow, arrow / "test", jsonl / "test.jsonl"]


def test_every_layout_gives_the_same_bytes(tmp_path: Path) -> None:
    outputs = set()
    for index, source in enumerate(layouts(tmp_path / "in")):
        out = tmp_path / f"out{index}"
        [result] = convert(source, out, load_mapping("gsm8k"), Options(), None, Silent())
        table = pq.read_table(result.output)
        outputs.add(json.dumps([{**r, "extra_info": {**r["extra_info"], "split": ""}} for r in table.to_pylist()]))
    assert len(outputs) == 1


def test_a_broken_row_is_named_and_stops_the_work_leaving_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "train.jsonl"
    bad.write_text(json.dumps(ROWS[0]) + "\n{oops\n" + json.dumps(ROWS[1]) + "\n")
    with pytest.raises(InputError) as caught:
        convert(bad, tmp_path / "out", load_mapping("gsm8k"), Options(), None, Silent())
    assert str(caught.value.place) == f"{bad}:2"
    assert list((tmp_path / "out").iterdir()) == []


def test_broken_rows_are_counted_when_skipped(tmp_path: Path) -> None:
    bad = tmp_path / "train.jsonl"
    lines = [
        json.dumps(ROWS[0]),
        "{oops",
        json.dumps({"question": "q"}),
        json.dumps({"question": "q", "answer": "none"}),
        "[1]",
    ]
    bad.write_text("\n".join(lines) + "\n\n")
    [result] = convert(bad, tmp_path / "out", load_mapping("gsm8k"), Options(skip_broken=True), None, Silent())
    assert (result.rows, result.broken_count) == (1, 4)
    assert [row.place.line for row in result.broken] == [2, 3, 4, 5]


def test_lengths_are_counted_with_the_template_and_long_prompts_left_out(tmp_path: Path, tokenizer_dir: Path) -> None:
    tokenizer = PromptTokenizer(tokenizer_dir)
    prompt = [{"role": "user", "content": "a b c"}]
    assert tokenizer.lengths([prompt]) == [4]  # <user>a b c, <go>
    options = Options(max_prompt=60, drop_long=True)
    [result] = convert(GSM8K, tmp_path / "out", load_mapping("gsm8k"), options, tokenizer, Silent())
    assert result.lengths["over_limit"] == result.over_limit_dropped > 0
    assert result.rows == 40 - result.over_limit_dropped


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["data", "gsm8k", "--from", "nowhere", "--out", "o"], 2, "no such file"),
        (["data", "gsm9k", "--from", str(GSM8K), "--out", "o"], 2, "no mapping"),
        (["data", "gsm8k", "--from", str(GSM8K), "--out", "o", "--max-prompt", "5"], 2, "--tokenizer"),
        (["data", "gsm8k", "--from", str(GSM8K), "--out", "o", "--tokenizer", "x"], 2, "tokenizer.json"),
        (["data", "gsm8k", "--from", str(GSM8K), "--out", "o"], 0, "40 rows"),
    ],
)
def test_the_command_answers_people(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(args) == code
    seen = capsys.readouterr()
    assert says in seen.out + seen.err
    assert "Traceback" not in seen.err


@pytest.mark.parametrize("name", ["cut.parquet", "cut.arrow"])
def test_a_file_cut_short_is_an_error_for_people(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match="cannot be read"):
        list(read_rows(tmp_path / name))


def test_a_json_array_is_told_from_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[\n{}\n]")
    with pytest.raises(InputError, match="one JSON array"):
        list(read_rows(tmp_path / "a.json"))


def test_an_own_mapping_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = 1\ndata_source = "mine"\nprompt = "${q}"\n[ground_truth]\nfield = "a"\npattern = "x"\n')
    with pytest.raises(InputError, match="exactly one group"):
        load_mapping(str(path))


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_no_bytes_crash_the_line_reader(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.jsonl"
    path.write_bytes(b"\n".join(lines))
    try:
        seen = list(read_rows(path))
    except InputError:
        return
    assert all(isinstance(row, (Row, BrokenRow)) for row in seen)


@given(st.lists(st.integers(1, 500), min_size=1))
def test_percentiles_are_those_of_the_sorted_list(lengths: list[int]) -> None:
    statistics = LengthStatistics.empty()
    for length in lengths:
        statistics.add(length)
    summary = statistics.summary(100)
    ordered = sorted(lengths)
    assert summary["min"] == ordered[0]
    assert summary["max"] == ordered[-1]
    assert summary["p50"] in ordered
    assert summary["over_limit"] == sum(length > 100 for length in lengths)


def test_an_empty_folder_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no data set"):
        find_splits(tmp_path)
