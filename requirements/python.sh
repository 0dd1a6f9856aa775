#!/bin/sh
# The Python that the tool's environment is made with: 3.10 or newer, with venv. As root on Debian what is missing is
# installed; otherwise the one command that does it is printed.
set -eu
python=${1:-python3}
fits() { "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
fits && exit 0
install="apt-get install --yes --no-install-recommends python3 python3-venv ca-certificates"
if ! command -v apt-get >/dev/null; then
    echo "error: $python is missing, older than 3.10 or without venv" >&2
    echo "do: install Python 3.10 or newer with its venv module, or name one: make PYTHON=/path/to/python3" >&2
    exit 6
fi
if [ "$(id -u)" != 0 ]; then
    echo "error: $python is missing, older than 3.10 or without venv" >&2
    echo "do: as root: $install" >&2
    exit 6
fi
echo "installing python3, python3-venv, ca-certificates" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive $install >/dev/null
fits || { echo "error: $python is still older than 3.10 or without venv; name another: make PYTHON=..." >&2; exit 6; }
