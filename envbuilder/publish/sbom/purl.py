"""Package URLs, as the package that specifies them writes them."""

from __future__ import annotations


def purl(kind: str, name: str, version: str, *, namespace: str = "", **qualifiers: str) -> str:
    """The package URL of ``name`` at ``version``; qualifiers that are empty are left out."""
    from packageurl import PackageURL

    kept = {key: value for key, value in qualifiers.items() if value}
    return str(PackageURL(kind, namespace or None, name, version or None, kept or None).to_string())
