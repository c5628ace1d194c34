"""The version of impctl, and names stamped with it: light, so that every room may ask for it.

Law: imports nothing; what one function stamps, the other reads.
Out of scope: the versions of other packages (`cli.application`).
"""

__version__ = "0.1.0"


def stamped(name: str) -> str:
    """The name as this release gives it; another release's is another name."""
    return f"{__version__}:{name}"


def is_stamped_alike(one: str, other: str) -> bool:
    """Whether both names were given by one release."""
    return one.partition(":")[0] == other.partition(":")[0]
