"""Where an image comes from, read back by in-toto's own bindings."""

import json
from dataclasses import replace

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as Message

from envbuilder.image.engine import ImageInfo
from envbuilder.image.record import record_path
from envbuilder.lock.reading import load_lock
from envbuilder.publish.evidence import origin_of
from envbuilder.publish.provenance import Origin, provenance
from envbuilder.stack.loading import load_stack
from tests.unit.publish.stand_in_image import lock

DIGEST = "sha256:" + "a" * 64
NAME = "registry.example.org/team/p40"


@pytest.fixture
def origin():
    return Origin(load_stack("p40-debian")[0], lock(), "runtime", False, "sha256:" + "9" * 64, {"buildah": "1.28.2"})


def test_it_is_a_statement_and_a_predicate_by_in_totos_own_reading(origin):
    body = json.loads(provenance(NAME, DIGEST, origin))
    Statement.copy_from_pb(json_format.ParseDict(body, Message())).validate()
    predicate = json_format.ParseDict(body["predicate"], Provenance())
    assert predicate.build_definition.build_type == "pkg:pypi/gpu-envbuilder#build"
    assert predicate.run_details.builder.version["buildah"] == "1.28.2"
    assert body["subject"] == [{"name": NAME, "digest": {"sha256": "a" * 64}}]
    assert body["predicateType"] == "https://slsa.dev/provenance/v1"


def test_every_artifact_of_the_lock_is_a_material_by_its_digest(origin):
    found = json.loads(provenance(NAME, DIGEST, origin))["predicate"]["buildDefinition"]["resolvedDependencies"]
    digests = {next(iter(one["digest"].values())) for one in found}
    whole = lock()
    wanted = {a.sha256 for a in (*whole.python, *whole.debs, *whole.conda)} | {whole.git[0].commit}
    assert wanted | {image.digest.removeprefix("sha256:") for image in whole.images} == digests


def test_what_only_the_devel_target_takes_is_no_material_of_the_runtime_image(origin):
    whole = load_lock(load_stack("p40-debian")[0])
    runtime = provenance(NAME, DIGEST, replace(origin, lock=whole))
    devel = provenance(NAME, DIGEST, replace(origin, lock=whole, target="devel"))
    assert b"nvidia-cuda-toolkit_" not in runtime
    assert b"nvidia-cuda-toolkit_" in devel


def test_the_same_origin_gives_the_same_bytes(origin):
    assert provenance(NAME, DIGEST, origin) == provenance(NAME, DIGEST, origin)


def test_an_origin_is_told_from_the_labels_and_the_record_of_exactly_this_build(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stack, _ = load_stack("p40-debian")
    labels = {"io.envbuilder.stack": stack.name, "io.envbuilder.lock": load_lock(stack).digest}
    image = ImageInfo("localhost/envbuilder/p40-debian:runtime", "sha256:1", DIGEST, (), labels)
    path = record_path(stack.name, "runtime")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"id": "sha256:1", "builder": {"engine": "buildah 1.28.2", "uv": "0.9.0"}}))
    assert origin_of(image, "sha256:1").builder == {"buildah": "1.28.2", "uv": "0.9.0"}
    assert origin_of(image, "sha256:2").builder == {}
    assert origin_of(replace(image, labels={**labels, "io.envbuilder.lock": "sha256:0"}), "sha256:1") is None
    assert origin_of(replace(image, labels={}), "sha256:1") is None
