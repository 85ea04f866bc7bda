"""A policy's YAML document, or everything that is wrong with it."""

from __future__ import annotations

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from reclaimer.policy_reader import Mistake


class MistakesError(Exception):
    """A document cannot be used. `mistakes` lists everything that is wrong, by line."""

    def __init__(self, source: str, mistakes: tuple[Mistake, ...]) -> None:
        self.source = source
        self.mistakes = mistakes
        super().__init__("\n".join(f"{source}:{mistake}" for mistake in mistakes))


def load(
    text: str,
    source: str,
    version: int,
    failing: type[MistakesError],
    *,
    keys: str = "version and rules",
) -> CommentedMap:
    """The document's mapping, which remembers its lines. `keys` names those that it must have.
    Raises `failing`."""
    try:
        document = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = str(error.problem or error).splitlines()[0]
        raise failing(source, (Mistake(line, "", problem),)) from error
    except (YAMLError, ValueError) as error:
        problem = f"is not YAML: {str(error).splitlines()[0]}"
        raise failing(source, (Mistake(1, "", problem),)) from error
    if not isinstance(document, CommentedMap):
        problem = f"must have the keys {keys}; start with version: {version}"
        raise failing(source, (Mistake(1, "", problem),))
    return document
