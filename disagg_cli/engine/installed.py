"""What is installed here, read from package metadata without importing anything."""

from importlib import metadata

PACKAGES = ("disagg-cli", "sglang", "sglang-router", "nixl", "nixl-cu12", "nixl-cu13", "torch", "transformers")


def version_of(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """The versions that decide how a deployment behaves."""
    return {package: version_of(package) for package in PACKAGES}
