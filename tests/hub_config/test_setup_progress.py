"""Sizes of folders that somebody else is changing at the same moment."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hub_config.setup.progress import folder_bytes


def test_what_vanishes_while_it_is_counted_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(b"x" * 1000)
    is_over = threading.Event()

    def churn() -> None:
        number = 0
        while not is_over.is_set():
            folder = tmp_path / f".tmp{number % 7}"
            os.makedirs(folder / "deep", exist_ok=True)
            os.rmdir(folder / "deep")
            os.rmdir(folder)
            number += 1

    other = threading.Thread(target=churn)
    other.start()
    try:
        assert {folder_bytes(tmp_path) for _ in range(2000)} == {1000}
    finally:
        is_over.set()
        other.join()


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert folder_bytes(tmp_path / "missing") == 0
