"""Memory that arrives after its tree runs again: our userfaultfd daemon in place of CRIU's.

`territory` is pure: where the pages of a snapshot belong now, and which are yet to come. `uffd` is
the kernel's interface. `filler` fills, as a process of its own (`python -m snapshot.filling`);
`escrow` is the supervisor's side, which holds the same descriptors; `guard` holds them too, and ends
the tree if both others are gone, because it would read zeros otherwise.

Only `snapshot.restore` and `snapshot.freezer` use this from outside, through `escrow`.
"""
