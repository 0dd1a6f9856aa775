"""Small sources of the shapes verl has, written for these tests; none of verl's own code."""

from __future__ import annotations

import pytest

from envbuilder.errors import InputError
from envbuilder.patch import codemod, yaml_sites
from envbuilder.patch.target import Target

P40 = Target("float32", "eager", compile=False)


def rewritten(source: str, target: Target = P40) -> str:
    return codemod.rewrite(source.encode(), target, "verl/x.py", lambda change: True)[1].decode()


def kinds(source: str) -> list[str]:
    return [change.kind for change in codemod.rewrite(source.encode(), P40, "verl/x.py", lambda change: True)[0]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = f(torch_dtype=torch.bfloat16)\n", "x = f(torch_dtype=torch.float32)\n"),
        ("model.to(torch.bfloat16)\n", "model.to(torch.float32)\n"),
        ("param_dtype = torch.float16\n", "param_dtype = torch.float32\n"),
        ("d = torch.float32 if actor else torch.bfloat16\n", "d = torch.float32 if actor else torch.float32\n"),
        ("rows.append(t._local.bfloat16())\n", "rows.append(t._local.to(torch.float32))\n"),
        ("y = x.half()\n", "y = x.to(torch.float32)\n"),
        ('c = cfg.get("param_dtype", "bf16")\n', 'c = cfg.get("param_dtype", "fp32")\n'),
        ("c = cfg.get('dtype', 'bfloat16')\n", "c = cfg.get('dtype', 'float32')\n"),
        ('class C:\n    dtype: str = "bfloat16"  # kept\n', 'class C:\n    dtype: str = "float32"  # kept\n'),
        ('def f(dtype="fp16"): ...\n', 'def f(dtype="fp32"): ...\n'),
        ('m(attn_implementation="flash_attention_2")\n', 'm(attn_implementation="eager")\n'),
        ('a = c.get("attn_implementation", "flash_attention_2")\n', 'a = c.get("attn_implementation", "eager")\n'),
        (
            "with torch.autocast(device_type=d, dtype=torch.bfloat16):\n    pass\n",
            "with torch.autocast(device_type=d, enabled=False):\n    pass\n",
        ),
        ("e = torch.compile(entropy, dynamic=True) if on else entropy\n", "e = entropy if on else entropy\n"),
        ("@torch.compile(dynamic=True)\ndef f(x): ...\n", "def f(x): ...\n"),
        ("@torch.compile\ndef f(x): ...\n", "def f(x): ...\n"),
        (
            "if cuda:\n    from flash_attn.bert_padding import (\n        pad_input,\n    )\n",
            "if cuda:\n    from verl.utils.plain_padding import (\n        pad_input,\n    )\n",
        ),
        (
            'assert self.dtype in ["bfloat16", "float16"], "no"\n',
            'assert self.dtype in ["bfloat16", "float16", "float32"], "no"\n',
        ),
        (
            "def masked_var(v, m):\n    variance = 1\n    if m == 1:\n"
            "        raise ValueError('The sum of the mask is one, x')\n",
            "def masked_var(v, m):\n    variance = 1\n    if m == 1:\n        return variance\n",
        ),
    ],
)
def test_each_shape_is_rewritten_once_and_a_second_run_changes_nothing(before: str, after: str) -> None:
    assert rewritten(before) == after
    assert kinds(before) != []
    assert (rewritten(after), kinds(after)) == (after, [])


@pytest.mark.parametrize(
    "source",
    [
        "if dtype == torch.float16:\n    scaler = 1\n",
        'ok = name in ("bf16", "fp16")\n',
        'HALF = [16, "16", "fp16", torch.float16]\n',
        "try:\n    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss\nexcept ImportError:\n    pass\n",
        "if is_flash_attn_2_available():\n    from flash_attn import flash_attn_func\n",
        "with torch.autocast(device_type=d, dtype=self.param_dtype):\n    pass\n",
        "with torch.autocast(device_type=d, enabled=False):\n    pass\n",
        '"""Talks of bfloat16 and flash_attention_2 in prose."""\n# and of torch.bfloat16\n',
    ],
)
def test_what_computes_nothing_is_left_as_it_is(source: str) -> None:
    assert (rewritten(source), kinds(source)) == (source, [])


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\ny = {'d': torch.bfloat16}\n", 2),
        ("frobnicate(torch.bfloat16)\n", 1),
        ("def f():\n    return 'bf16'\n", 2),
        ("import triton\n", 1),
        ("import torch\nimport flash_attn\n", 2),
        ("from flash_attn import flash_attn_func\n", 1),
        ("with torch.autocast('cuda'):\n    pass\n", 1),
        ("def other(m):\n    raise ValueError('The sum of the mask is one')\n", 2),
        ("def masked_var(m):\n    raise ValueError('The sum of the mask is one')\n", 2),
        ("f = torch.compile()\n", 1),
        ("config._attn_implementation = pick('flash_attention_2')\n", 1),
        ("def broken(:\n", 1),
    ],
)
def test_what_is_not_understood_stops_with_file_and_line(source: str, line: int) -> None:
    with pytest.raises(InputError) as caught:
        rewritten(source)
    assert caught.value.place is not None
    assert (caught.value.place.file, caught.value.place.line) == ("verl/x.py", line)


def test_only_the_wanted_sites_change() -> None:
    source = 'a(attn_implementation="flash_attention_2")\nb.to(torch.bfloat16)\n'
    changes, after = codemod.rewrite(source.encode(), P40, "verl/x.py", lambda change: change.kind == "dtype")
    assert [change.line for change in changes] == [1, 2]
    assert after.decode() == 'a(attn_implementation="flash_attention_2")\nb.to(torch.float32)\n'


def test_another_card_gets_another_dtype_and_keeps_what_it_has() -> None:
    target = Target("float16", "sdpa", compile=True)
    assert rewritten("x.to(torch.bfloat16)\n", target) == "x.to(torch.float16)\n"
    assert rewritten('c.get("param_dtype", "bf16")\n', target) == 'c.get("param_dtype", "fp16")\n'
    for kept in ("x.to(torch.float16)\n", "f = torch.compile(g)\n"):
        assert rewritten(kept, target) == kept


def test_yaml_changes_one_value_and_nothing_else() -> None:
    source = b"# dtype: bfloat16\ntop:\n  dtype:   bfloat16 # aligned\n  other: [1, 'bf16']\n  name: bfloat16-like\n"
    changes, after = yaml_sites.rewrite(source, P40, "verl/x.yaml", lambda change: True)
    assert [(c.line, c.before, c.after) for c in changes] == [(3, "bfloat16", "float32"), (4, "bf16", "fp32")]
    expected = b"# dtype: bfloat16\ntop:\n  dtype:   float32 # aligned\n  other: [1, 'fp32']\n  name: bfloat16-like\n"
    assert after == expected


def test_yaml_that_is_none_is_an_error() -> None:
    with pytest.raises(InputError, match="not YAML"):
        yaml_sites.rewrite(b"a: [bfloat16\n", P40, "verl/x.yaml", lambda change: True)
