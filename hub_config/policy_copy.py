"""The operator's copy of the reclaim policy, and the one number that `up` may change in it."""

from __future__ import annotations

from importlib.resources import files
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from hub_config.problems import UpRefused
from reclaimer.durations import format_duration, parse_duration

SHORTER_THAN_IDLE = (("defaults", "minimum_age", 1.0), ("signals", "cpu_window", 1.0))
WARNING_SHARE = 0.25


def ensure_policy(path: Path) -> None:
    """Copy the policy that is shipped, once. From then on the file is the operator's."""
    if not path.exists():
        path.write_text(files("reclaimer").joinpath("default_policy.yaml").read_text())


def set_idle_after(path: Path, seconds: float) -> str:
    """Write another idle time into the policy, and shorten what would outlast it.

    Comments and everything else stay. Returns one sentence about what was changed."""
    yaml = YAML()
    text = path.read_text()
    document = yaml.load(text)
    try:
        changed = _shorten(document, seconds)
    except (KeyError, TypeError, ValueError) as error:
        raise UpRefused(
            f"--idle-after cannot be written into {path}: {error}.",
            remedy="Run `hubernate policy check` on the file, and correct it.",
        ) from error
    out = StringIO()
    yaml.dump(document, out)
    if out.getvalue() != text:
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(out.getvalue())
        temporary.replace(path)
    return f"{path}: {', '.join(changed)}"


def _shorten(document: dict[str, dict[str, str]], seconds: float) -> list[str]:
    limits = [("defaults", "warn_before", WARNING_SHARE), *SHORTER_THAN_IDLE]
    document["defaults"]["idle_after"] = format_duration(seconds)
    changed = [f"idle_after is {format_duration(seconds)}"]
    for group, key, share in limits:
        longest = max(1.0, seconds * share)
        if key in document.get(group, {}) and parse_duration(document[group][key]) > longest:
            document[group][key] = format_duration(longest)
            changed.append(f"{key} is {format_duration(longest)}")
    return changed
