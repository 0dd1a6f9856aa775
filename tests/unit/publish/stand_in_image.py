"""A made-up image: a docker archive with the package databases of two Debian packages, some distributions, conda."""

import hashlib
import io
import json
import tarfile

from envbuilder.lock.model import BaseImage, CondaArtifact, DebArtifact, DebianBase, GitArtifact, Lock, PythonArtifact

SITE = "opt/venv/lib/python3.11/site-packages"
LOCK = "sha256:" + "1" * 64

STATUS = """\
Package: libdemo1
Status: install ok installed
Maintainer: Demo Team <team@example.org>
Architecture: amd64
Multi-Arch: same
Source: demo (1:1.0-1)
Version: 1:1.0-1+b1
Description: a library
 of no use

Package: tool
Status: install ok installed
Architecture: all
Version: 2.0-3

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 0.9-1
"""
COPYRIGHT = """\
Format: https://www.example.org/copyright-format/1.0/

Files: *
Copyright: 2020 Somebody
License: GPL-2+ or Artistic

Files: debian/*
Copyright: 2021 Somebody Else
License: Expat

Files: odd/*
Copyright: 2021 Somebody Else
License: ad-hoc
"""


def distribution(name, version, files, metadata="", record=True):
    """The files of an installed distribution, its dist-info included."""
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\n"
    lines = [*files, f"{folder}/METADATA", f"{folder}/RECORD"]
    made = {f"{SITE}/{path}": b"content\n" for path in files if ".." not in path}
    made[f"{SITE}/{folder}/METADATA"] = text.encode()
    if record:
        made[f"{SITE}/{folder}/RECORD"] = "".join(f"{path},,\n" for path in lines).encode()
    return made


def files():
    """Every file of the image; a value that is text is where a link points to."""
    vendored = distribution("carried", "1.5", ["carried.py"])
    big_files = [path.removeprefix(f"{SITE}/") for path in vendored]
    return {
        "bin": "usr/bin",
        "etc/os-release": "../usr/lib/os-release",
        "usr/lib/os-release": b'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        "var/lib/dpkg/status": STATUS.encode(),
        "var/lib/dpkg/diversions": b"/bin/sh\n/bin/sh.distrib\ntool\n",
        "var/lib/dpkg/info/libdemo1:amd64.list": b"/.\n/usr\n/usr/lib/libdemo.so.1\n/bin/sh\n",
        "var/lib/dpkg/info/tool.list": b"/.\n/bin\n/bin/tool\n/bin/sh\n",
        "usr/lib/libdemo.so.1": b"\x7fELF",
        "usr/bin/tool": b"#!/bin/sh\n",
        "usr/bin/sh": b"\x7fELF",
        "usr/bin/sh.distrib": b"\x7fELF",
        "usr/share/doc/libdemo1/copyright": COPYRIGHT.encode(),
        "usr/share/doc/tool": "libdemo1",
        **distribution("Alpha", "1.0.0", ["alpha.py", "../../../bin/alpha"], "License-Expression: mit OR apache-2.0\n"),
        "opt/venv/bin/alpha": b"#!/bin/sh\n",
        **distribution("beta", "2.0+cu118", ["beta/__init__.py"], "License: Apache License 2.0\nAuthor: B. Eta\n"),
        **distribution("gamma", "3.0", ["gamma.py"], "License: BSD\nClassifier: License :: BSD License\n"),
        **distribution("bare", "4.0", ["bare.py"]),
        **distribution("apex", "0.1", ["apex/__init__.py"], "License: BSD-3-Clause\n"),
        **distribution("big", "5.0", big_files, "Classifier: License :: OSI Approved :: MIT License\n"),
        **vendored,
        "opt/conda/conda-meta/zlib-1.3-h1_0.json": json.dumps(
            {
                "name": "zlib", "version": "1.3", "build": "h1_0", "subdir": "linux-64", "license": "Zlib",
                "channel": "https://conda.anaconda.org/conda-forge/linux-64", "files": ["lib/libz.so"],
            }
        ).encode(),
        "opt/conda/lib/libz.so": b"\x7fELF",
        f"{SITE}/envbuilder/__init__.py": b'__version__ = "0.9.9"\n',
        "opt/envbuilder/stack.json": json.dumps(
            {"stack": {"name": "stand-in", "source_date_epoch": 1757289600}, "gpu": {"name": "p40"}, "lock": LOCK}
        ).encode(),
        "etc/motd": b"hello\n",
    }  # fmt: skip


def lock():
    """The lock of it."""
    return Lock(
        stack="stand-in",
        digest=LOCK,
        python=tuple(
            PythonArtifact(name=n, version=v, filename=f"{n}-{v}-py3-none-any.whl", sha256=str(at) * 64, size=at)
            for at, (n, v) in enumerate([("alpha", "1.0"), ("beta", "2.0+cu118"), ("gamma", "3.0"), ("bare", "4.0"),
                                         ("big", "5.0")])
        ),
        debian=DebianBase(
            suite="bookworm", release="12.15", security=True,
            packages=tuple(
                DebArtifact(name=n, version=v, architecture=a, suite="bookworm", component="main", sha256=s * 64,
                            size=9, path=f"pool/main/d/demo/{n}_{a}.deb", target="runtime")
                for n, v, a, s in [("libdemo1", "1:1.0-1+b1", "amd64", "a"), ("tool", "2.0-3", "all", "b")]
            ),
        ),
        conda=(CondaArtifact(name="zlib", version="1.3", build="h1_0", filename="zlib-1.3-h1_0.conda", url="x",
                             md5="c" * 32, sha256="d" * 64, size=7),),
        git=(GitArtifact(name="apex", repository="https://github.com/NVIDIA/apex", tag="25.05", commit="e" * 40),),
        images=(BaseImage(target="runtime", reference="nvidia/cuda:11.8.0-runtime", digest="sha256:" + "f" * 64),
                BaseImage(target="installer", reference="mambaorg/micromamba:2.8.1", digest="sha256:" + "0" * 64)),
    )  # fmt: skip


def tar_of(content):
    """A tar archive of ``content``."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def archive(path, content):
    """Write a docker archive of one layer to ``path``."""
    manifest = [{"Config": "config.json", "Layers": ["layer.tar"]}]
    layer = tar_of(content)
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": "amd64", "os": "linux", "rootfs": rootfs}
    parts = {name: json.dumps(said).encode() for name, said in (("manifest.json", manifest), ("config.json", config))}
    parts["layer.tar"] = layer
    path.write_bytes(tar_of(parts))
    return str(path)
