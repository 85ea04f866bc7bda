"""`python -m snapshot.filling`: see `program`."""

from snapshot.filling.program import main

main()
