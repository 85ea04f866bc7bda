"""The operator's copy of the reclaim policy, and the one number that `up` may change in it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from hub_config.problems import UpRefused
from reclaimer.durations import format_duration, parse_duration
from reclaimer.policy_file import PolicyError, default_policy_text, parse_policy

_LIMITED = (
    ("defaults", "warn_before", 0.5),
    ("defaults", "minimum_age", 1.0),
    ("signals", "cpu_window", 1.0),
)
"""What must not outlast the idle time, as a share of it."""


def ensure_policy(path: Path) -> None:
    """Copy the policy that is shipped, once. From then on the file is the operator's."""
    if not path.exists():
        path.write_text(default_policy_text())


def set_idle_after(path: Path, seconds: float) -> str:
    """Write another idle time into the policy, and shorten what would outlast it.

    Rules and comments stay. Returns one sentence about what was changed. Raises `UpRefused`,
    leaving the file as it was, when the result would be no valid policy."""
    text = path.read_text()
    try:
        parse_policy(text, str(path))
        changed, new_text = _changed(text, max(1.0, seconds))
        parse_policy(new_text, str(path))
    except PolicyError as error:
        raise UpRefused(
            f"--idle-after {format_duration(seconds)} makes no valid policy:\n{error}\n",
            remedy=f"Correct {path}, or choose another time.",
        ) from error
    if new_text != text:
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(new_text)
        temporary.replace(path)
    return f"{path}: {', '.join(changed)}"


def _changed(text: str, seconds: float) -> tuple[list[str], str]:
    yaml = YAML()
    document = yaml.load(text)
    document.setdefault("defaults", {})["idle_after"] = format_duration(seconds)
    changed = [f"idle_after is {format_duration(seconds)}"]
    for group, key, share in _LIMITED:
        longest = max(1.0, seconds * share)
        values = document.get(group) or {}
        if key in values and parse_duration(str(values[key])) > longest:
            values[key] = format_duration(longest)
            changed.append(f"{key} is {format_duration(longest)}")
    out = StringIO()
    yaml.dump(document, out)
    return changed, out.getvalue()
