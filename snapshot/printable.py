"""Text that a program inside a session chose, fit for other people's screens and logs (pure)."""

from __future__ import annotations


def printable(text: str, longest: int = 160, *, keep_end: bool = False) -> str:
    """One line of at most `longest` characters that moves no cursor. `keep_end`: of what is too long
    the end stays, which tells more of a path."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    if len(shown) <= longest:
        return shown
    return f"…{shown[1 - longest :]}" if keep_end else f"{shown[: longest - 1]}…"
