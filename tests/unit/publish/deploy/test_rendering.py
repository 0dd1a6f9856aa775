"""Job files: what they say, that no value of a user's is ever read as code, and that schedulers know every key."""

import json
import shlex
import subprocess

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.cli.deploy import command
from envbuilder.errors import InputError
from envbuilder.publish.deploy import quoting
from envbuilder.publish.deploy.job import Folder, Job, folder, image_name, interface, node_labels
from envbuilder.publish.deploy.rendering import render
from envbuilder.publish.deploy.training import overrides
from envbuilder.stack.loading import load_stack

IMAGE = image_name("registry.lab:5000/team/p40:v1@sha256:" + "ab" * 32)
STACK, _ = load_stack("p40-debian")
# What a path of Linux or a setting may hold, without the NUL that ends it.
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30)
NASTY = [
    "a b",
    "it's",
    'a "b"',
    "$HOME",
    "$(touch x)",
    "`x`",
    "a\nb: c",
    "# no",
    "{{ x }}",
    "- a",
    "\\",
    "\x85 ",
    "é😀",
]


def job(**changed):
    settings_ = overrides(STACK, changed.get("nodes", 1), changed.get("gpus", 1))
    places = {"model": "/models/Qwen2.5-0.5B-Instruct", "data": "/data/gsm8k", "results": "/scratch/run"}
    folders = {name: Folder(path) for name, path in places.items()}
    return Job(**{"stack": "p40-debian", "image": IMAGE, "overrides": settings_, **folders, **changed})


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_golden(scheduler, nodes, snapshot):
    assert render(scheduler, job(nodes=nodes, gpus=2, interface="eth0" if nodes > 1 else "")).text == snapshot


def test_golden_compose(snapshot):
    assert render("compose", job(gpus=2)).text == snapshot


def documents(rendered):
    return list(yaml.safe_load_all(rendered.text))


@pytest.mark.parametrize("nodes", [1, 2])
def test_kubernetes_knows_every_key(nodes):
    claims = {"model": folder("pvc:models/qwen", "--model"), "results": folder("pvc:runs", "--results")}
    labels = node_labels(["nvidia.com/gpu.product=Tesla-P40"])
    for document in documents(render("kubernetes", job(nodes=nodes, node_labels=labels, **claims))):
        for version in ("1.25", "1.31", "1.37"):
            kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_would_find_a_key_that_is_not_there():
    document = documents(render("kubernetes", job()))[-1]
    document["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.31", strict=True)


def containers(document):
    spec = document["spec"]["template"]["spec"]
    return [*spec["initContainers"], *spec["containers"]]


def test_kubernetes_gives_no_privilege_and_proves_first():
    *_, policy, work = documents(render("kubernetes", job(nodes=2)))
    pod = work["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    for container in containers(work):
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"]
        assert not context["privileged"]
        assert not context["allowPrivilegeEscalation"]
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/results", "/tmp", "/home/trainer", "/dev/shm"}
    first, second = containers(work)
    assert "envbuilder.smoke.cards" in first["command"]
    assert "envbuilder.smoke.launch" in second["command"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_one_kubernetes_host_has_no_network():
    policy, _ = documents(render("kubernetes", job()))
    assert "ingress" not in policy["spec"]
    assert "egress" not in policy["spec"]


def test_compose_gives_no_privilege_and_proves_first():
    services = documents(render("compose", job()))[0]["services"]
    assert services["train"]["depends_on"] == {"verify": {"condition": "service_completed_successfully"}}
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["network_mode"] == "none"
        assert service["read_only"]
        assert service["user"] == "1000:1000"
        assert [v["target"] for v in service["volumes"] if not v.get("read_only")] == ["/results"]


@settings(max_examples=25, deadline=None)
@given(path=TEXT, setting=TEXT)
def test_yaml_gives_back_what_was_put_in(path, setting):
    folders = {name: Folder(f"/{path}") for name in ("model", "data", "results")}
    work = documents(render("kubernetes", job(overrides=(f"a={setting}",), **folders)))[-1]
    volumes = {v["name"]: v for v in work["spec"]["template"]["spec"]["volumes"]}
    assert volumes["model"]["hostPath"]["path"] == f"/{path}"
    assert undoubled(containers(work)[1]["command"][-1]) == f"a={setting}"
    train = documents(render("compose", job(overrides=(f"a={setting}",), **folders)))[0]["services"]["train"]
    assert undoubled(train["volumes"][0]["source"]) == f"/{path}"
    assert undoubled(train["command"][-1]) == f"a={setting}"


def undoubled(value):
    """What Kubernetes and Compose make of a value: ``$$`` is ``$``, and a single one would be expanded."""
    assert value.replace("$$", "").count("$") == 0
    return value.replace("$$", "$")


@settings(max_examples=25, deadline=None)
@given(path=TEXT.filter(lambda text: not set(text) & set(",:\n")), setting=TEXT)
def test_the_shell_gives_back_what_was_put_in(path, setting):
    check_shell(path, setting)


@pytest.mark.parametrize("text", NASTY)
def test_the_shell_and_what_is_known_to_hurt(text):
    check_shell(text.translate({ord(c): None for c in ",:\n"}), text)


def check_shell(path, setting):
    text = render("slurm", job(model=Folder(f"/{path}"), overrides=(f"a={setting}",))).text
    head, _, _ = text.partition("fail() {")
    told = subprocess.run(
        ["bash", "-c", head + 'printf \'%s\\0\' "$model" "${trainer[@]: -1}"'], capture_output=True, check=True
    )
    assert told.stdout.decode().split("\0")[:-1] == [f"/{path}", f"a={setting}"]
    assert told.stderr == b""


def test_a_template_cannot_put_in_a_value_unquoted():
    with pytest.raises(TypeError, match="unquoted"):
        quoting.only_quoted("a; rm -rf /")
    with pytest.raises(ValueError, match="unquoted"):
        quoting.plain("a b")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: image_name("registry.lab/p40:v1"), "digest"),
        (lambda: image_name("registry.lab/P40@sha256:" + "ab" * 32), "digest"),
        (lambda: image_name("$(x)@sha256:" + "ab" * 32), "digest"),
        (lambda: folder("models", "--model"), "no absolute path"),
        (lambda: folder("/a/../etc", "--model"), "no absolute path"),
        (lambda: folder("//", "--results"), "all that a host has"),
        (lambda: folder("pvc:Models", "--model"), "no claim"),
        (lambda: folder("pvc:models/../x", "--model"), "no claim"),
        (lambda: folder("/a\udcff", "--model"), "not UTF-8"),
        (lambda: interface("eth0 x"), "no network interface"),
        (lambda: node_labels(["gpu"]), "no label"),
        (lambda: overrides(STACK, 1, 1, ["trainer.total_epochs"]), "no override"),
        (lambda: render("compose", job(nodes=2)), "one host"),
        (lambda: render("slurm", job(model=Folder(claim="models"))), "no claims"),
        (lambda: render("slurm", job(model=Folder("/a:b"))), "colon"),
        (lambda: render("compose", job(node_labels={"a": "b"})), "no labels"),
    ],
)
def test_what_cannot_be_is_said(make, says):
    with pytest.raises(InputError, match=says) as raised:
        make()
    assert raised.value.cure


def test_an_image_by_name_and_digest():
    assert IMAGE.reference == "registry.lab:5000/team/p40@sha256:" + "ab" * 32
    assert "registry.lab:5000#team/p40:sha256:" in render("slurm", job()).text
    assert image_name("team/p40@sha256:" + "ab" * 32).registry == ""


def test_an_override_takes_the_place_of_ours():
    rows = overrides(STACK, 2, 4, ["data.train_batch_size=16", "+trainer.nnodes=3", "trainer.total_epochs=2"])
    assert "data.train_batch_size=16" in rows
    assert [row for row in rows if "nnodes" in row] == ["+trainer.nnodes=3"]
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=8" in rows
    assert rows[-1] == "trainer.total_epochs=2"


def test_the_command_writes_the_file_and_names_the_next(tmp_path):
    arguments = [
        "compose",
        "p40-debian",
        "--image",
        IMAGE.reference,
        "--model",
        "/m",
        "--data",
        "/d",
        "--results",
        "/r",
    ]
    done = CliRunner().invoke(
        command, [*arguments, "--out", str(tmp_path / "my jobs"), "--json"], catch_exceptions=False
    )
    told = json.loads(done.output)
    path = tmp_path / "my jobs" / "p40-debian.compose.yaml"
    assert shlex.split(told["submit"]) == ["docker", "compose", "-f", str(path), "run", "--rm", "train"]
    assert path.read_text().startswith("# Proves")
