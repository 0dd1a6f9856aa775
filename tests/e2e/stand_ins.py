"""What stands in for the big binaries when Dockerfile.p40 is built whole: small, with the real names.

Real: the lock by conda-lock and uv, the fetching, the rendered Dockerfile, the engine, nvcc 11.8.89 of Debian's
non-free and g++-11, py-rattler, pip, setuptools, the verl 0.5.0 wheel, and the code that is compiled for sm_61.
Stand-ins: the base images (Debian 12 in the place of CUDA's), Python (Debian's 3.11), cuDNN and the other conda
packages, torch and every wheel it and verl ask for (real names, nothing inside), Apex (its shape), micromamba (the
two commands it is given, over py-rattler), the hosts (loopback; by hand under their real names).
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from rattler_build import assemble_package

EPOCH = datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc)
PYTHON = "3.11"
TORCH_TAG = "cp311-cp311-linux_x86_64"

# --- torch: its version, its CUDA release, and as much of cpp_extension as an Apex-shaped setup.py asks for -----------

TORCH = {
    "torch/__init__.py": "from torch import version\n__version__ = '2.6.0+cu118'\n",
    "torch/version.py": "cuda = '{cuda}'\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": '''\
"""Stand-in: compiles .cu with nvcc for TORCH_CUDA_ARCH_LIST, .cpp with g++."""
import os, subprocess
from setuptools import Extension
from setuptools.command.build_ext import build_ext

CUDA_HOME = os.environ["CUDA_HOME"]

class CUDAExtension(Extension):
    pass

class CppExtension(Extension):
    pass

class BuildExtension(build_ext):
    def build_extension(self, ext):
        target = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        import sysconfig
        include = ["-I", sysconfig.get_paths()["include"]]
        if any(source.endswith(".cu") for source in ext.sources):
            arches = []
            for arch in os.environ["TORCH_CUDA_ARCH_LIST"].split(";"):
                number = arch.replace(".", "")
                arches += ["-gencode", f"arch=compute_{number},code=sm_{number}"]
            command = [f"{CUDA_HOME}/bin/nvcc", "-shared", "-Xcompiler", "-fPIC", *arches]
        else:
            command = ["g++", "-shared", "-fPIC"]
        command += [*include, "-o", target, *ext.sources]
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True)
''',
}

# --- Apex: the shape of its setup.py at 25.05, three small modules --------------------------------------------------

_MODULE = """\
#define PY_SSIZE_T_CLEAN
#include <Python.h>
{body}
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, 0}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""
_KERNEL = """\
__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }
void launch(float *x) { scale<<<1, 32>>>(x, 2.0f); }
"""
APEX = {
    "setup.py": """\
import subprocess, sys
from setuptools import setup
import torch
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

modules = []
if "--cpp_ext" in sys.argv:
    sys.argv.remove("--cpp_ext")
    modules.append(CppExtension("apex_C", ["csrc/apex_C.cpp"]))
if "--cuda_ext" in sys.argv:
    sys.argv.remove("--cuda_ext")
    release = subprocess.check_output([CUDA_HOME + "/bin/nvcc", "-V"], text=True)
    if "release " + torch.version.cuda not in release:
        raise RuntimeError("Cuda extensions are being compiled with a version of Cuda that does not match torch")
    modules += [CUDAExtension(name, ["csrc/" + name + ".cu"]) for name in ("amp_C", "fused_layer_norm_cuda")]
setup(name="apex", version="0.1", packages=["apex"], ext_modules=modules, cmdclass={"build_ext": BuildExtension})
""",
    "apex/__init__.py": "",
    "csrc/apex_C.cpp": _MODULE.format(name="apex_C", body=""),
    "csrc/amp_C.cu": _MODULE.format(name="amp_C", body=_KERNEL),
    "csrc/fused_layer_norm_cuda.cu": _MODULE.format(name="fused_layer_norm_cuda", body=_KERNEL),
}

# --- micromamba: the two commands the Dockerfile gives it, over the real py-rattler ---------------------------------

MICROMAMBA = '''\
#!/usr/bin/python3
"""Stand-in for micromamba: create downloads what a conda-lock file names and goes to py-rattler, remove takes files."""
import hashlib, json, pathlib, sys, tempfile, urllib.request
sys.path.insert(0, "/opt/stand-in")
arguments = [a for a in sys.argv[1:] if a not in ("--no-rc", "--offline", "--force")]
if arguments[0] == "create":
    place = arguments.index("--file") + 1
    if arguments[place].endswith("-lock.yml"):
        import yaml
        folder = pathlib.Path(tempfile.mkdtemp())
        lines = ["@EXPLICIT"]
        for package in yaml.safe_load(pathlib.Path(arguments[place]).read_text())["package"]:
            path = folder / package["url"].rpartition("/")[2]
            with urllib.request.urlopen(package["url"]) as got:
                path.write_bytes(got.read())
            print("downloaded", package["url"])
            lines.append(f"{path.as_uri()}#{package['hash']['md5']}")
        arguments[place] = str(folder / "explicit.txt")
        pathlib.Path(arguments[place]).write_text("\\n".join(lines))
    sys.argv = ["micromamba", *arguments]
    from envbuilder.lock.solver.__main__ import main
    main()
prefix = pathlib.Path(arguments[arguments.index("--prefix") + 1])
for name in arguments[arguments.index("--prefix") + 2 :]:
    for meta in prefix.glob(f"conda-meta/{name}-[0-9]*.json"):
        for file in json.loads(meta.read_text())["files"]:
            (prefix / file).unlink(missing_ok=True)
        meta.unlink()
'''


def wheel(path: Path, files: Mapping[str, str], requires: Iterable[str] = ()) -> bytes:
    """Write a wheel named by ``path`` with ``files``; its bytes. The same every time."""
    name, version, *tag = path.name.removesuffix(".whl").split("-")
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    members = {
        **files,
        f"{info}/METADATA": about,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: true\nTag: {'-'.join(tag)}\n",
    }
    rows = [f"{member},sha256={_record(text)},{len(text.encode())}" for member, text in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member, (2025, 1, 1, 0, 0, 0)), text)
    return path.read_bytes()


def _record(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def conda_package(folder: Path, name: str, version: str, depends: list[str], channel: str) -> dict[str, Any]:
    """Make a conda package out of ``folder/files/name`` (else an empty one) and put it into its channel; its record."""
    files = folder / "files" / name
    files.mkdir(parents=True, exist_ok=True)
    if not any(files.rglob("*")):
        (files / "share").mkdir()
        (files / "share" / f"{name}.txt").write_text(f"stand-in for {name} {version}\n")
    made = assemble_package(
        name=name,
        version=version,
        target_platform="linux-64",
        build_string="standin_0",
        output_dir=folder / "made",
        files_dir=files,
        depends=depends,
        timestamp=EPOCH,
        compression_level=1,
        detect_prefix=False,
    )
    target = folder / "channels" / channel / "linux-64" / Path(made.path).name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made.path, target)
    data = target.read_bytes()
    return {
        "name": name,
        "version": version,
        "build": "standin_0",
        "subdir": "linux-64",
        "url": f"https://conda.anaconda.org/{channel}/linux-64/{target.name}",
        "md5": hashlib.md5(data).hexdigest(),
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "depends": depends,
    }


def python_files(folder: Path) -> None:
    """The stand-in of Python: the base's interpreter, seen as an environment of its own."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{PYTHON}"):
        (folder / "bin" / name).symlink_to(f"/usr/bin/python{PYTHON}")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n")


def installed_files(folder: Path, distribution: str) -> None:
    """The files of a distribution of this environment, as its conda package would hold them."""
    for file in metadata.files(distribution) or ():
        source, target = Path(str(file.locate())), folder / "lib" / f"python{PYTHON}" / "site-packages" / str(file)
        if source.is_file() and ".." not in target.parts and "__pycache__" not in target.parts:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def apex_repository(folder: Path) -> str:
    """A git repository with the Apex-shaped source; its commit."""
    for name, text in APEX.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    who = ["-c", "user.name=stand-in", "-c", "user.email=stand-in@example.com"]
    for command in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "-m", "Apex-shaped"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    subprocess.run(["git", "-C", str(folder), "config", "uploadpack.allowAnySHA1InWant", "true"], check=True)
    run = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return run.stdout.strip()
