"""Numbers in the units that a person would choose."""

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(count: int) -> str:
    """Bytes, in powers of 1024."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_BYTES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_BYTES[unit]}"


def human_seconds(seconds: float) -> str:
    """A duration, in microseconds, milliseconds or seconds."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def duration(seconds: float) -> str:
    """A time as people say it: `42 s`, `3 min`, `5 h 12 min`, `2 d 3 h`."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural where there are several or none."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
