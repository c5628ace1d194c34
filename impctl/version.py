"""The version of impctl, and names stamped with it. Imports nothing: every package may use it."""

__version__ = "0.1.0"


def stamped(name: str) -> str:
    """Prefix the name with this release, so that each release has its own names."""
    return f"{__version__}:{name}"


def is_stamped_alike(one: str, other: str) -> bool:
    """Whether both names were stamped by the same release."""
    return one.partition(":")[0] == other.partition(":")[0]
