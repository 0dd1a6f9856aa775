"""Patterns, conditions and weighing."""

import pytest

from envbuilder.diagnose.conditions import holds, parse
from envbuilder.diagnose.context import DERIVED, fact_patterns
from envbuilder.diagnose.engine import patterns_of
from envbuilder.diagnose.explain import explain_text
from envbuilder.diagnose.patterns import compiled, literals
from envbuilder.diagnose.rulebook import rules, slots_of

LOG_RULES = [rule for rule in rules().values() if rule.kind == "log"]
FACTS = {fact.name for fact in fact_patterns()} | set(DERIVED)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("No space left on device", ("no space left on device",)),
        (r"Duplicate GPU detected ?: rank", ("duplicate gpu detected",)),
        (r"alpha\.beta|gamma[0-9]+delta", ("alpha.beta", "gamma")),
        (r"(?:one thing|other) and x", (" and x",)),
        (r"(?:first|second)\d", ("first", "second")),
        (r"a(?:optional text)?fixed", ("fixed",)),
        (r"(?!not this)really this", ("really this",)),
        (r"x{2,3}long enough", ("long enough",)),
        (r"(?-i:Exact)\d(?P<name>Group of text)", ("group of text",)),
        (r"[a-z(]+literal", ("literal",)),
    ],
)
def test_the_fixed_text_of_a_pattern(pattern: str, expected: tuple[str, ...]) -> None:
    assert literals(pattern) == expected


def test_a_pattern_without_fixed_text_is_refused() -> None:
    with pytest.raises(ValueError, match="without a fixed text"):
        literals(r"\d+|ab")


def test_every_pattern_has_fixed_text() -> None:
    for pattern in patterns_of(LOG_RULES):
        assert literals(pattern)


@pytest.mark.parametrize("rule", LOG_RULES, ids=[rule.id for rule in LOG_RULES])
def test_every_slot_has_a_source(rule) -> None:  # type: ignore[no-untyped-def]
    groups = {name for pattern in (*rule.needs, *rule.helps) for name in compiled(pattern).groupindex}
    assert slots_of(rule) <= groups | FACTS
    for condition in rule.when:
        assert parse(condition)[0] in FACTS


def test_every_rule_has_sources() -> None:
    assert all(len(source) > 4 for rule in rules().values() for source in rule.sources)


@pytest.mark.parametrize(
    ("condition", "facts", "expected"),
    [
        ("capability < 7.0", {"capability": ("6.1",)}, True),
        ("capability < 7.0", {"capability": ("10.0",)}, False),
        ("capability < 7.0", {}, False),
        ("nvcc != torch_cuda", {"nvcc": ("12.3",), "torch_cuda": ("12.1",)}, True),
        ("nvcc != torch_cuda", {"nvcc": ("12.1",), "torch_cuda": ("12.1",)}, False),
        ("verl known", {"verl": ("verl",)}, True),
        ("verl unknown", {}, True),
        ("torch_tag == cu118", {"torch_tag": ("CU118",)}, True),
        ("driver >= 525.60", {"driver": ("not a version",)}, False),
    ],
)
def test_conditions(condition: str, facts: dict[str, tuple[str, ...]], expected: bool) -> None:
    assert holds(condition, facts) is expected


def test_a_condition_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="not a condition"):
        parse("capability is low")


# Logs whose last lines are (nearly) the same and whose causes are not.
PAIRS = [
    ("cudnn missing", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory", {
        "torch-own-cudnn-missing": "",
        "cudnn8-pinned-over-torch": "requires nvidia-cudnn-cu11==9.1.0.70, but you have nvidia-cudnn-cu11 8.9.7.29",
    }),
    ("apex", "ImportError: cannot import name 'amp' from 'apex' (/env/site-packages/apex/__init__.py)", {
        "apex-amp-removed": "Successfully installed apex-0.1",
        "pypi-apex": "Successfully installed apex-0.9.10.dev0",
    }),
    ("undefined symbol", "torch 2.6.0+cu124", {
        "abi-flag-differs": "x.cpython-311.so: undefined symbol: _ZN3c105ErrorC2ENSt7__cxx1112basic_stringIcEE",
        "extension-built-for-other-torch": "x.cpython-311.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
    }),
    ("nvml", "Failed to initialize NVML: Driver/library version mismatch", {
        "nvml-driver-library-mismatch": "NVML library version: 535.183",
        "nvml-mismatch-in-container": "$ docker exec train nvidia-smi",
    }),
    ("no devices", "No devices were found", {
        "open-modules-need-gsp": "NVRM: nvidia.ko because it does not include the required GPU\nNVRM: System Processor",
        "bar-above-4g": "pci 0000:01:00.0: BAR 1: no space for [mem size 0x800000000 64bit pref]",
        "driver-branch-dropped-card": "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please",
        "smi-no-devices": "",
    }),
    ("space", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", {
        "docker-data-root-full": "df -h: /dev/sda2 50G 50G 0 100% /var",
        "inodes-exhausted": "df -i: Filesystem Inodes IUsed IFree IUse% Mounted\n/dev/sda2 3276800 3276800 0 100% /",
        "tmp-full": "tmpfs 2.0G 2.0G 0 100% /tmp",
        "shared-memory-full": "/dev/shm: No space left on device",
        "disk-full": "",
    }),
    ("hydra", "Key 'X' is not in struct", {
        "hydra-key-unknown": "Key 'val_temperature' is not in struct",
        "hydra-key-renamed": "Key 'grad_offload' is not in struct",
    }),
    ("ray memory", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", {
        "ray-memory-workers": "PID MEM(GB) COMMAND\n1 56.57 ray::WorkerDict.actor_rollout_generate_sequences",
        "ray-memory-driver": "PID MEM(GB) COMMAND\n1 390.00 ray::TaskRunner.run",
        "ray-memory": "",
    }),
    ("out of memory", "RuntimeError: CUDA Error: out of memory at cumem.cpp", {
        "vllm-wake-up-memory": "in wake_up",
    }),
    ("hash", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", {
        "pip-hash-other-index": "attempt 1: Got aaaaaaaaaaaa\nattempt 2: Got aaaaaaaaaaaa",
        "pip-hash-download-damaged": "attempt 1: Got aaaaaaaaaaaa\nattempt 2: Got bbbbbbbbbbbb",
        "pip-hash-mismatch": "",
    }),
    ("cuda", "The detected CUDA version (12.9) mismatches the version that was used to compile\nPyTorch (11.8).", {
        "cuda-toolkit-differs": "pip install --no-build-isolation git+https://example.invalid/x",
        "cuda-mismatch-build-isolation": "/tmp/pip-build-env-x/overlay/lib/python3.10/site-packages/torch",
    }),
]  # fmt: skip
CASES = [(last, rest, rule) for _, last, answers in PAIRS for rule, rest in answers.items()]


@pytest.mark.parametrize(("last", "rest", "rule"), CASES, ids=[case[2] for case in CASES])
def test_the_rest_of_the_log_decides(last: str, rest: str, rule: str) -> None:
    lines = [*rest.splitlines(), last]
    assert explain_text(lines).findings[0].rule == rule


def test_two_faults_of_their_own_are_both_told() -> None:
    lines = ["ptxas: no", "E: Unable to locate package foo", "CUDA out of memory. Tried to allocate 2.00 GiB"]
    assert {finding.rule for finding in explain_text(lines).findings} == {"apt-package-unknown", "cuda-out-of-memory"}


def test_a_process_that_is_held_to_less_than_the_card_has_is_told_so() -> None:
    # As PyTorch 2.11 says it under torch.cuda.set_per_process_memory_fraction.
    line = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 520.00 MiB. GPU 0 has a total capacity of 139.80 GiB "
        "of which 127.31 GiB is free. Including non-PyTorch memory, this process has 12.49 GiB memory in use. 12.00 "
        "GiB allowed; Of the allocated memory 11.14 GiB is allocated by PyTorch, and 638.01 MiB is reserved by PyTorch."
    )
    assert "held to 12.00 GiB" in explain_text([line]).findings[0].cause


def test_a_cause_hides_what_it_ends_in() -> None:
    lines = ["c++: fatal error: Killed signal terminated program cc1plus", "ninja: build stopped: subcommand failed."]
    assert [finding.rule for finding in explain_text(lines).findings] == ["compiler-killed"]
