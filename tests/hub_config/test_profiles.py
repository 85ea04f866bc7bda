"""The operator's profile table: what is right is taken, what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_config.profiles import load_profiles, profiles_for
from spawner.profiles_model import DEFAULT_PROFILES, GIB, BadProfiles, Profile


def test_without_a_file_the_defaults_that_fit_here(tmp_path: Path) -> None:
    assert load_profiles(tmp_path / "none") == DEFAULT_PROFILES
    assert [p.slug for p in profiles_for(2)] == ["cpu", "gpu-1", "gpu-2"]
    assert [p.slug for p in profiles_for(0)] == ["cpu"]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "profiles.yaml"
    path.write_text(text)
    return path


def test_a_table_with_every_field(tmp_path: Path) -> None:
    text = """
profiles:
  - slug: a100
    title: 1 A100
    description: One.
    gpus: 1
    gpu_model: A100
    cpus: 8
    memory_gib: 64
    suspend: never
  - {slug: small, suspend: allowed}
"""
    assert load_profiles(write(tmp_path, text)) == (
        Profile("a100", "1 A100", "One.", 1, 8.0, 64 * GIB, "A100", True),
        Profile("small", "small", ""),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("profiles: [", "line 1"),
        ("[]", "one key, profiles"),
        ("profiles: 3", "one key, profiles"),
        ("profiles: []", "empty"),
        ("profiles: [{slug: a}, {slug: a}]", "used twice"),
        ("profiles: [{title: a}]", "entry 1: slug is missing"),
        ("profiles: [{slug: a}, {slug: b, gpu: 1}]", "entry 2: unknown key 'gpu'"),
        ("profiles: [{slug: a, gpus: 1.5}]", "gpus must be a whole number"),
        ("profiles: [{slug: a, gpus: -1}]", "0 or more"),
        ("profiles: [{slug: a, gpus: yes}]", "gpus must be a"),
        ("profiles: [{slug: a, suspend: always}]", "suspend must be allowed or never"),
        ("profiles: [{slug: a, title: 3}]", "title must be a text"),
        ("profiles: [a]", "is a mapping with the keys"),
    ],
)
def test_a_wrong_table_names_file_entry_and_key(tmp_path: Path, text: str, named: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadProfiles) as told:
        load_profiles(path)
    assert named in str(told.value)
    assert "entry" not in named or str(path) in str(told.value)
