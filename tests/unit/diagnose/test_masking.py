"""Secrets and personal paths never leave explain."""

import json

import pytest

from envbuilder.diagnose.explain import explain_text
from envbuilder.diagnose.masking import mask


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("pip install --index-url https://bob:hunter2secret@pypi.corp.example/simple torch", "hunter2secret"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "hf_abcdefghijklmnopqrstuvwx"),
        ("export WANDB_API_KEY='0123456789abcdef0123456789abcdef01234567'", "0123456789abcdef"),
        ("Authorization: Bearer eyJhbGciOi.eyJzdWIiOiIx.c2lnbmF0dXJl", "eyJzdWIiOiIx"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("docker login -u bob --password s3cr3tvalue", "s3cr3tvalue"),
        ('{"password": "s3cr3tvalue"}', "s3cr3tvalue"),
        ("db password: s3cr3tvalue", "s3cr3tvalue"),
        ("git clone https://ghp_abcdefghijklmnopqrstuvwxyz0123456789@github.com/x/y", "ghp_abcdef"),
        ("token github_pat_11ABCDEFG0abcdefghijklmnop", "github_pat_11"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("https://s3.example/x?X-Amz-Signature=abcdef123&a=1", "abcdef123"),
        ("mail alice.smith@example.org now", "alice.smith"),
        ("/home/alice/envs/p40/lib", "alice"),
        ("/Users/alice/Library", "alice"),
        (r"C:\Users\alice\AppData", "alice"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ],
)
def test_it_is_masked(text: str, secret: str) -> None:
    assert secret not in mask(text)
    assert mask(mask(text)) == mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "nvidia/cuda:11.8.0-devel-ubuntu22.04@sha256:8f9dd0d09d3ad3900357a1cf7f887888b5b74056636cd6ef03c160c3cd4b1d95",
        "git+https://github.com/NVIDIA/apex@379937e1719b8190f38f3e666e2a8d32c97e221f",
        "tokenizers==0.21.4 is required",
        "max_tokens 512, pad_token_id 151645",
        "/opt/conda/envs/rl/lib/python3.10/site-packages/torch",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


def test_reports_hold_no_secret_and_no_home() -> None:
    lines = [
        "OSError: [Errno 28] No space left on device: '/home/alice/.cache/x' token=abc123secret",
        "ImportError: /home/alice/venv/x.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ]
    text = json.dumps(explain_text(lines, subject="/home/alice/build.log").to_dict())
    assert "alice" not in text
    assert "abc123secret" not in text
